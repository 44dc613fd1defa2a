// Bootstrap: turns the launcher's settings for this process into the store and the directory of its
// job.
#include "gtopk/launch.hpp"

#include <string>
#include <utility>
#include <vector>

#include "src/transport/bootstrap/job_secret.hpp"
#include "src/transport/bootstrap/pmix_client.hpp"
#include "src/transport/bootstrap/pmix_rendezvous.hpp"
#include "src/transport/bootstrap/served_store.hpp"
#include "src/transport/bootstrap/tcp_store.hpp"

namespace gtopk {

using bootstrap::PmixClient;

std::unique_ptr<KeyValueStore> join_rendezvous(const LaunchEnvironment& environment,
                                               std::chrono::nanoseconds at_most) {
  if (environment.pmix) {
    return bootstrap::join_rendezvous(PmixClient::required(), at_most);
  }
  const bootstrap::Endpoint server{.host = environment.host, .port = environment.port};
  const std::string secret = bootstrap::job_secret();
  if (environment.rank > 0) {
    return std::make_unique<bootstrap::TcpStore>(std::vector{server}, at_most, secret);
  }
  return bootstrap::serve_at(server.port, at_most, secret);
}

std::string job_secret() {
  std::string given = bootstrap::job_secret();
  return given.empty() ? bootstrap::drawn_secret() : given;
}

std::shared_ptr<Directory> join_job(const LaunchEnvironment& environment,
                                    std::chrono::nanoseconds at_most) {
  auto store = join_rendezvous(environment, at_most);
  if (environment.pmix) {
    return bootstrap::directory_over(PmixClient::required(), std::move(store));
  }
  return directory_over(std::move(store));
}

ServiceAddress find_service(std::uint16_t port, std::chrono::nanoseconds at_most) {
  bootstrap::Endpoint found = bootstrap::find_service(PmixClient::required(), port, at_most);
  return {.host = std::move(found.host), .port = found.port};
}

}  // namespace gtopk
