#include "src/transport/ucx/context.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <net/if.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>

#include "gtopk/error.hpp"
#include "src/transport/base/log.hpp"
#include "src/transport/base/request.hpp"
#include "src/transport/base/shortage.hpp"
#include "src/transport/ucx/descriptor_reserve.hpp"
#include "src/transport/ucx/status.hpp"

namespace gtopk::transport {
namespace {

/// The descriptors that UCX opens when it starts, and per network interface. Measured were 11, and
/// 2 or 3.
constexpr std::size_t kDescriptorsAtStart = 16;
constexpr std::size_t kDescriptorsPerInterface = 3;

/// Counts all interfaces, which is an upper bound, because UCX uses only those that are up.
std::size_t count_interfaces(const UcxConfig& config) {
  const std::string named = config.network_devices();
  if (!named.empty() && named != "all") {
    return 1 + static_cast<std::size_t>(std::ranges::count(named, ','));
  }
  const std::unique_ptr<struct if_nameindex, decltype(&if_freenameindex)> all(if_nameindex(),
                                                                              &if_freenameindex);
  std::size_t count = 0;
  while (all != nullptr && all.get()[count].if_index != 0) {
    ++count;
  }
  return count;
}

/// Checks that there are enough descriptors; without them, UCX may end the process by a signal.
void check_descriptors(const UcxConfig& config) {
  const std::size_t needed = kDescriptorsAtStart + DescriptorReserve::kSize +
                             kDescriptorsPerInterface * count_interfaces(config);
  if (const std::string shortage = descriptor_shortage(needed); !shortage.empty()) {
    throw Error(ErrorKind::kTransport, fmt::format("UCX cannot start: {}", shortage));
  }
}

/// Returns the path from which UCX was loaded, because the wheel's, Debian's and a user's own UCX
/// have the same SONAME.
std::string loaded_library() {
  Dl_info info{};
  const auto* const address = reinterpret_cast<const void*>(&ucp_get_version);
  const bool found = dladdr(address, &info) != 0 && info.dli_fname != nullptr;
  return fmt::format("UCX {} ({})", ucp_get_version_string(), found ? info.dli_fname : "linked in");
}

}  // namespace

UcxContext::UcxContext(const UcxConfig& config) : library_(loaded_library()) {
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  ucp_get_version(&major, &minor, &release);
  if (UCP_VERSION(major, minor) < UCP_API_VERSION) {
    throw Error(
        ErrorKind::kUnsupported,
        fmt::format(
            "{} was loaded, but gtopk was built for UCX {}.{}: put that one first (RUNPATH or "
            "LD_LIBRARY_PATH; in Python, libucx.load_library() before anything that loads another)",
            library_, UCP_API_MAJOR, UCP_API_MINOR));
  }
  check_descriptors(config);
  ucp_params_t params{};
  params.field_mask =
      UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
  params.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
  params.name = "gtopk";
  params.mt_workers_shared = 0;
  ucp_context_h context = nullptr;
  const ucs_status_t status = ucp_init(&params, config.get(), &context);
  throw_unless_ok(status, fmt::format("startup (ucp_init) with {}", config.said_of_transports()));
  context_.reset(context);

  ucp_context_attr_t attributes{};
  attributes.field_mask = UCP_ATTR_FIELD_REQUEST_SIZE | UCP_ATTR_FIELD_MEMORY_TYPES;
  throw_unless_ok(ucp_context_query(context, &attributes), "ucp_context_query");
  request_size_ = attributes.request_size;
  knows_cuda_ = (attributes.memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA)) != 0;
  if (request_size_ > Request::kStorage) {
    throw Error(ErrorKind::kUnsupported, fmt::format("{} needs {} bytes per request, gtopk has {}",
                                                     library_, request_size_, Request::kStorage));
  }
  log().info("{}", library_);
}

}  // namespace gtopk::transport
