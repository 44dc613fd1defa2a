#include "src/transport/topology/probe.hpp"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <map>
#include <memory>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "gtopk/error.hpp"
#include "src/transport/topology/hwloc_library.hpp"
#include "src/transport/topology/networks.hpp"

namespace gtopk::topology {
namespace {

/// PCI classes and vendors that distinguish a GPU from a mainboard's graphics.
constexpr unsigned kVga = 0x0300;
constexpr unsigned kDisplay = 0x03;
constexpr unsigned kAccelerator = 0x12;
constexpr unsigned kNvidia = 0x10de;
constexpr unsigned kAmd = 0x1002;
constexpr unsigned kIntel = 0x8086;

bool is_gpu(const hwloc_obj_attr_u::hwloc_pcidev_attr_s& pci) {
  const unsigned base = pci.class_id >> 8U;
  if (base == kDisplay && pci.vendor_id == kIntel) {
    return pci.class_id != kVga;
  }
  if (base == kDisplay) {
    return pci.vendor_id == kNvidia || pci.vendor_id == kAmd;
  }
  return base == kAccelerator && pci.vendor_id == kAmd;
}

class Reader {
 public:
  explicit Reader(HwlocLibrary hwloc) : hwloc_(hwloc), topology_(nullptr, hwloc.topology_destroy) {
    hwloc_topology_t made = nullptr;
    if (hwloc_.topology_init(&made) != 0) {
      throw failed("hwloc_topology_init");
    }
    topology_.reset(made);
    // Cores that a cgroup forbids are kept, because devices near them are not near the other cores.
    if (hwloc_.topology_set_flags(made, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED) != 0) {
      throw failed("hwloc_topology_set_flags");
    }
    // Without this, hwloc reports neither NICs nor GPUs.
    hwloc_.topology_set_io_types_filter(made, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    // GPUs are recognised by PCI class. These components would start a driver to look for them.
    for (const char* const component : {"cuda", "nvml", "opencl", "gl", "rsmi", "levelzero"}) {
      hwloc_.topology_set_components(made, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, component);
    }
  }

  void take_file(const std::string& path) {
    if (hwloc_.topology_set_xml(topology_.get(), path.c_str()) != 0) {
      throw failed("reading it");
    }
  }

  Topology read() {
    if (hwloc_.topology_load(topology_.get()) != 0) {
      throw failed("hwloc_topology_load");
    }
    const unsigned version = hwloc_.get_api_version();
    Topology machine{.source = fmt::format("hwloc {}.{}", version >> 16U, (version >> 8U) & 0xffU),
                     .cores = cores_of(hwloc_.get_obj_by_depth(topology_.get(), 0, 0)->cpuset),
                     .allowed = cores_of(hwloc_.topology_get_allowed_cpuset(topology_.get()))};
    for (hwloc_obj_t each : all(hwloc_.get_type_depth(topology_.get(), HWLOC_OBJ_PACKAGE))) {
      machine.packages.push_back({.number = each->os_index, .cores = cores_of(each->cpuset)});
    }
    for (hwloc_obj_t each : all(HWLOC_TYPE_DEPTH_NUMANODE)) {
      machine.nodes.push_back({.number = each->os_index,
                               .memory = each->attr->numanode.local_memory,
                               .cores = cores_of(each->cpuset)});
    }
    for (hwloc_obj_t each : all(HWLOC_TYPE_DEPTH_OS_DEVICE)) {
      add_nic(each, machine);
    }
    for (hwloc_obj_t each : all(HWLOC_TYPE_DEPTH_PCI_DEVICE)) {
      if (is_gpu(each->attr->pcidev)) {
        machine.gpus.push_back(device(each, machine.cores));
      }
    }
    const auto by_bus = [](const Device& a, const Device& b) { return a.bus < b.bus; };
    std::sort(machine.gpus.begin(), machine.gpus.end(), by_bus);
    for (std::size_t i = 0; i < machine.gpus.size(); ++i) {
      machine.gpus[i].name = fmt::format("GPU {}", i);
    }
    std::sort(machine.nics.begin(), machine.nics.end(), [](const Device& a, const Device& b) {
      return std::tie(a.bus, a.name) < std::tie(b.bus, b.name);
    });
    return machine;
  }

 private:
  static Error failed(const char* what) {
    return {ErrorKind::kInvalidArgument,
            fmt::format("hwloc: {}: {}", what, std::generic_category().message(errno))};
  }

  std::vector<hwloc_obj_t> all(int depth) const {
    std::vector<hwloc_obj_t> found;
    if (depth == HWLOC_TYPE_DEPTH_UNKNOWN || depth == HWLOC_TYPE_DEPTH_MULTIPLE) {
      return found;
    }
    const unsigned count = hwloc_.get_nbobjs_by_depth(topology_.get(), depth);
    for (unsigned i = 0; i < count; ++i) {
      found.push_back(hwloc_.get_obj_by_depth(topology_.get(), depth, i));
    }
    return found;
  }

  Cores cores_of(hwloc_const_bitmap_t set) const {
    Cores cores;
    for (int core = -1; set != nullptr && (core = hwloc_.bitmap_next(set, core)) >= 0;) {
      cores.push_back(static_cast<std::uint32_t>(core));
    }
    return cores;
  }

  /// The location of a PCI device in the machine.
  Device device(hwloc_obj_t pci, const Cores& everywhere) const {
    const hwloc_obj_attr_u::hwloc_pcidev_attr_s& at = pci->attr->pcidev;
    Device made;
    made.bus = fmt::format("{:04x}:{:02x}:{:02x}.{:x}", at.domain, at.bus, at.dev, at.func);
    hwloc_obj_t above = pci->parent;
    for (; above != nullptr && above->cpuset == nullptr; above = above->parent) {
      if (above->type == HWLOC_OBJ_BRIDGE) {
        made.bridges.push_back(above->gp_index);
      }
    }
    std::reverse(made.bridges.begin(), made.bridges.end());
    made.near = above == nullptr ? everywhere : cores_of(above->cpuset);
    if (made.near.empty()) {
      made.near = everywhere;  // the node has memory but no cores
    }
    return made;
  }

  /// Adds an interface or an RDMA device; the ones on one card are merged into one NIC.
  void add_nic(hwloc_obj_t found, Topology& machine) const {
    const hwloc_obj_osdev_type_t type = found->attr->osdev.type;
    if (type != HWLOC_OBJ_OSDEV_NETWORK && type != HWLOC_OBJ_OSDEV_OPENFABRICS) {
      return;
    }
    hwloc_obj_t pci = found->parent;
    while (pci != nullptr && pci->type != HWLOC_OBJ_PCI_DEVICE) {
      pci = pci->parent;
    }
    if (pci == nullptr || found->name == nullptr) {
      return;
    }
    Device nic = device(pci, machine.cores);
    const auto same = [&](const Device& each) { return each.bus == nic.bus; };
    const auto known = std::find_if(machine.nics.begin(), machine.nics.end(), same);
    if (type == HWLOC_OBJ_OSDEV_OPENFABRICS) {
      if (known != machine.nics.end()) {
        known->rdma = found->name;
        return;
      }
      nic.rdma = found->name;
    } else if (known != machine.nics.end() && known->name == known->rdma) {
      known->name = found->name;
      return;
    }
    nic.name = found->name;
    machine.nics.push_back(std::move(nic));
  }

  HwlocLibrary hwloc_;
  std::unique_ptr<hwloc_topology, decltype(&hwloc_topology_destroy)> topology_;
};

/// Whether it is up according to the kernel, or unknown to it.
bool is_up(const std::string& interface) {
  std::ifstream file("/sys/class/net/" + interface + "/operstate");
  std::string state;
  file >> state;
  return state != "down" && state != "lowerlayerdown" && state != "notpresent";
}

}  // namespace

Cores allowed_here() {
  // The kernel may be built for this many cores, possibly more than fit in a cpu_set_t.
  constexpr std::size_t kMost = 65536;
  const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(
      CPU_ALLOC(kMost), [](cpu_set_t* each) { CPU_FREE(each); });
  const std::size_t bytes = CPU_ALLOC_SIZE(kMost);
  CPU_ZERO_S(bytes, set.get());
  Cores cores;
  if (sched_getaffinity(0, bytes, set.get()) != 0) {
    return cores;
  }
  for (std::uint32_t core = 0; core < kMost; ++core) {
    if (CPU_ISSET_S(core, bytes, set.get())) {
      cores.push_back(core);
    }
  }
  return cores;
}

Topology probe_this_machine() {
  Topology machine;
  try {
    machine = Reader(load_hwloc()).read();
  } catch (const Error& error) {
    machine.source = error.what();
  }
  machine.allowed = allowed_here();
  std::map<std::string, std::vector<std::string>> networks = networks_here();
  for (Device& nic : machine.nics) {
    nic.up = is_up(nic.name);
    nic.networks = networks[nic.name];
  }
  return machine;
}

Topology probe_file(const std::string& path) {
  Reader reader(load_hwloc());
  try {
    reader.take_file(path);
    return reader.read();
  } catch (const Error& error) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("{} is not an hwloc topology file: {}", path, error.what()));
  }
}

}  // namespace gtopk::topology
