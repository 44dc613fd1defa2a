// Topology: the functions of hwloc 2 that the probe calls, from a library that is loaded when a
// machine is probed, so that one wheel runs with and without it. Types and constants come from its
// headers, which the build needs; all of hwloc 2 has the binary interface of libhwloc.so.15.
#pragma once

#include <hwloc.h>

namespace gtopk::topology {

struct HwlocLibrary {
  decltype(&hwloc_get_api_version) get_api_version;
  decltype(&hwloc_topology_init) topology_init;
  decltype(&hwloc_topology_destroy) topology_destroy;
  decltype(&hwloc_topology_load) topology_load;
  decltype(&hwloc_topology_set_xml) topology_set_xml;
  decltype(&hwloc_topology_set_flags) topology_set_flags;
  decltype(&hwloc_topology_set_components) topology_set_components;
  decltype(&hwloc_topology_set_io_types_filter) topology_set_io_types_filter;
  decltype(&hwloc_topology_get_allowed_cpuset) topology_get_allowed_cpuset;
  decltype(&hwloc_get_type_depth) get_type_depth;
  decltype(&hwloc_get_nbobjs_by_depth) get_nbobjs_by_depth;
  decltype(&hwloc_get_obj_by_depth) get_obj_by_depth;
  decltype(&hwloc_bitmap_next) bitmap_next;
};

/// Loads libhwloc.so.15; it stays loaded. Throws Error{kUnsupported}, which says what is missing.
[[nodiscard]] HwlocLibrary load_hwloc();

}  // namespace gtopk::topology
