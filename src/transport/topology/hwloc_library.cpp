#include "src/transport/topology/hwloc_library.hpp"

#include <dlfcn.h>

#include <fmt/format.h>

#include "gtopk/error.hpp"

namespace gtopk::topology {
namespace {

constexpr const char* kName = "libhwloc.so.15";

Error no_library() {
  const char* const why = dlerror();
  return {ErrorKind::kUnsupported, fmt::format("hwloc 2 is not available: {} (Debian: libhwloc15)",
                                               why != nullptr ? why : "unknown error")};
}

template <class Function>
void find(void* library, const char* symbol, Function& into) {
  void* const address = dlsym(library, symbol);
  if (address == nullptr) {
    throw no_library();
  }
  into = reinterpret_cast<Function>(address);
}

}  // namespace

HwlocLibrary load_hwloc() {
  // The library's symbols stay private, because torch or a launcher's library may load another
  // hwloc.
  void* const library = dlopen(kName, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    throw no_library();
  }
  HwlocLibrary functions{};
  find(library, "hwloc_get_api_version", functions.get_api_version);
  find(library, "hwloc_topology_init", functions.topology_init);
  find(library, "hwloc_topology_destroy", functions.topology_destroy);
  find(library, "hwloc_topology_load", functions.topology_load);
  find(library, "hwloc_topology_set_xml", functions.topology_set_xml);
  find(library, "hwloc_topology_set_flags", functions.topology_set_flags);
  find(library, "hwloc_topology_set_components", functions.topology_set_components);
  find(library, "hwloc_topology_set_io_types_filter", functions.topology_set_io_types_filter);
  find(library, "hwloc_topology_get_allowed_cpuset", functions.topology_get_allowed_cpuset);
  find(library, "hwloc_get_type_depth", functions.get_type_depth);
  find(library, "hwloc_get_nbobjs_by_depth", functions.get_nbobjs_by_depth);
  find(library, "hwloc_get_obj_by_depth", functions.get_obj_by_depth);
  find(library, "hwloc_bitmap_next", functions.bitmap_next);
  return functions;
}

}  // namespace gtopk::topology
