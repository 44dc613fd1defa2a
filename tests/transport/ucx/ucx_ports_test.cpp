// GTOPK_PORTS: where a process takes connections, and what it says if it cannot.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "gtopk/error.hpp"
#include "src/transport/ucx/config.hpp"
#include "src/transport/ucx/ucx_transport.hpp"

namespace gtopk::test {
namespace {

using testing::HasSubstr;

constexpr const char* kPorts = "GTOPK_PORTS";

/// A port of the loopback interface that is taken as long as this lives.
class TakenPort {
 public:
  TakenPort() : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(socket_, any, size), 0);
    EXPECT_EQ(listen(socket_, 1), 0);
    EXPECT_EQ(getsockname(socket_, any, &size), 0);
    number_ = ntohs(address.sin_port);
  }
  TakenPort(const TakenPort&) = delete;
  TakenPort& operator=(const TakenPort&) = delete;
  ~TakenPort() { close(socket_); }

  [[nodiscard]] std::uint16_t number() const { return number_; }

 private:
  int socket_;
  std::uint16_t number_ = 0;
};

bool accepts(std::uint16_t port) {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  const bool connected =
      connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  close(socket);
  return connected;
}

/// A UCX worker that cannot have its port leaks its record of the interface (1.22, 616 bytes). A
/// suppression would not match: UCX has no frame pointers, so the stack ends at its calloc.
class LeaksOfUcx {
#if defined(__SANITIZE_ADDRESS__)
  __lsan::ScopedDisabler off_;
#endif
};

transport::UcxOptions over_loopback() {
  return {.settings = {{"TLS", "tcp,self"}, {"NET_DEVICES", "lo"}}};
}

TEST(UcxPorts, OfTheEnvironmentAreWhereConnectionsAreTaken) {
  std::uint16_t port = 0;
  {
    const TakenPort taken;
    port = taken.number();
  }
  setenv(kPorts, std::to_string(port).c_str(), 1);
  const auto transport = transport::make_ucx_transport(over_loopback());
  unsetenv(kPorts);
  EXPECT_TRUE(accepts(port));
  EXPECT_THAT(transport->describe(),
              HasSubstr(fmt::format("TCP_PORT_RANGE={0}-{0} (GTOPK_PORTS)", port)));
}

TEST(UcxPorts, ThatOthersHaveAreAnErrorThatNamesThem) {
  const TakenPort taken;
  setenv(kPorts, fmt::format("{0}-{0}", taken.number()).c_str(), 1);
  try {
    [[maybe_unused]] const LeaksOfUcx unseen;
    static_cast<void>(transport::make_ucx_transport(over_loopback()));
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kTransport);
    EXPECT_THAT(error.what(), HasSubstr("no TCP port is free"));
    EXPECT_THAT(error.what(),
                HasSubstr(fmt::format("one port of GTOPK_PORTS={0}-{0} for", taken.number())));
  }
  unsetenv(kPorts);
}

TEST(UcxPorts, OfTheEnvironmentBeatUcxsOwnButNotOursForUcx) {
  setenv("UCX_TCP_PORT_RANGE", "1-2", 1);
  setenv(kPorts, "30000-60000", 1);
  EXPECT_EQ(transport::UcxConfig({}).said_of_ports(), "GTOPK_PORTS=30000-60000");
  setenv("GTOPK_UCX_TCP_PORT_RANGE", "20000-30000", 1);
  EXPECT_EQ(transport::UcxConfig({}).said_of_ports(), "GTOPK_UCX_TCP_PORT_RANGE=20000-30000");
  unsetenv("GTOPK_UCX_TCP_PORT_RANGE");
  unsetenv(kPorts);
  EXPECT_EQ(transport::UcxConfig({}).said_of_ports(), "UCX_TCP_PORT_RANGE=1-2");
  unsetenv("UCX_TCP_PORT_RANGE");
  EXPECT_EQ(transport::UcxConfig({}).said_of_ports(), "");
  const std::vector<std::pair<std::string, std::string>> program = {{"TCP_PORT_RANGE", "5-6"}};
  EXPECT_EQ(transport::UcxConfig(program).said_of_ports(), "UCX_TCP_PORT_RANGE=5-6");
}

TEST(UcxPorts, ThatAreNoRangeAreAnErrorThatShowsOne) {
  for (const auto& [value, range] : {std::pair{"40000-40015", "40000-40015"},
                                     {"40000", "40000-40000"},
                                     {"1-65535", "1-65535"}}) {
    setenv(kPorts, value, 1);
    EXPECT_EQ(transport::ports_of_environment(), range);
  }
  for (const char* const value : {"", "0", "0-10", "10-9", "1-65536", "40000-", "-40000", "-",
                                  "a-b", "1-2-3", "1 - 2", "40000:40015", "40000,40001"}) {
    setenv(kPorts, value, 1);
    try {
      static_cast<void>(transport::make_ucx_transport());
      ADD_FAILURE() << "'" << value << "' is taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      EXPECT_THAT(error.what(),
                  HasSubstr(fmt::format("GTOPK_PORTS is '{}': expected a range of TCP "
                                        "ports of 1 to 65535, like 40000-40015",
                                        value)));
    }
  }
  unsetenv(kPorts);
}

}  // namespace
}  // namespace gtopk::test
