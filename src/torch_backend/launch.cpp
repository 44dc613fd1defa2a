// Torch backend: what Python asks the launcher, as operators torch.ops.gtopk.*. The Python side is
// gtopk/core/launch.py.
#include "gtopk/launch.hpp"

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

#include "src/torch_backend/errors.hpp"
#include "src/torch_backend/torch_headers.hpp"
#include "src/torch_backend/work.hpp"

namespace gtopk::torch_backend {
namespace {

std::optional<std::int64_t> integer(std::optional<std::uint32_t> number) {
  return number ? std::optional<std::int64_t>(*number) : std::nullopt;
}

/// The fields are rank and size; rank and size on this host, if the launcher provides them; and
/// host and port of rank 0's store, which are empty and 0 if PMIx will provide them.
using Place = std::tuple<std::int64_t, std::int64_t, std::optional<std::int64_t>,
                         std::optional<std::int64_t>, std::string, std::int64_t>;

Place launcher_place() {
  try {
    const LaunchEnvironment environment = launcher_environment();
    return {environment.rank,
            environment.world_size,
            integer(environment.local_rank),
            integer(environment.local_world_size),
            environment.host,
            environment.port};
  } catch (const Error& error) {
    rethrow_for_python(error);
  }
}

/// Finds torch's store. Rank 0 passes its port, and other ranks pass 0; all get the address at
/// which they reach it.
std::tuple<std::string, std::int64_t> find_torch_store(std::int64_t port, std::int64_t timeout_ms) {
  try {
    const ServiceAddress found =
        find_service(static_cast<std::uint16_t>(port), std::chrono::milliseconds(timeout_ms));
    return {found.host, found.port};
  } catch (const Error& error) {
    rethrow_for_python(error);
  }
}

TORCH_LIBRARY_FRAGMENT(gtopk, library) {
  library.def("launcher_place() -> (int, int, int?, int?, str, int)", &launcher_place);
  library.def("find_torch_store(int port, int timeout_ms) -> (str, int)", &find_torch_store);
}

}  // namespace
}  // namespace gtopk::torch_backend
