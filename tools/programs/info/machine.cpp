#include "tools/programs/info/machine.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <string_view>

#include <fmt/format.h>

#include "src/transport/topology/job_place.hpp"
#include "src/transport/topology/probe.hpp"
#include "src/transport/ucx/port_range.hpp"

namespace gtopk::programs::info {
namespace {

namespace fs = std::filesystem;

/// Returns the first line of a file; empty if there is no such file.
std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::vector<std::string> entries(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code none;
  for (const fs::directory_entry& each : fs::directory_iterator(folder, none)) {
    names.push_back(each.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

Limit limit_of(__rlimit_resource_t resource) {
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0) {
    return {};
  }
  const auto number = [](rlim_t value) {
    return value == RLIM_INFINITY ? std::numeric_limits<std::uint64_t>::max() : value;
  };
  return {.soft = number(limit.rlim_cur), .hard = number(limit.rlim_max)};
}

/// Returns an address as text; empty if it means nothing to other hosts.
std::string address_of(const sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* number = nullptr;
  if (address->sa_family == AF_INET) {
    number = &reinterpret_cast<const sockaddr_in*>(address)->sin_addr;
  } else if (address->sa_family == AF_INET6) {
    const auto* const six = &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
    if (!IN6_IS_ADDR_LINKLOCAL(six)) {
      number = six;
    }
  }
  if (number == nullptr) {
    return {};
  }
  return inet_ntop(address->sa_family, number, text.data(), text.size()) == nullptr ? ""
                                                                                    : text.data();
}

/// Returns the number in a file; 0 if there is no such file, or no number in it.
std::uint64_t number_in(const fs::path& path, int base = 10) {
  return std::strtoull(first_line(path).c_str(), nullptr, base);
}

std::optional<std::uint64_t> megabits_of(const std::string& interface) {
  const std::string text = first_line(fs::path("/sys/class/net") / interface / "speed");
  // The driver reports -1, or nothing, if it does not know.
  if (text.empty() || text.front() == '-') {
    return std::nullopt;
  }
  return std::stoull(text);
}

std::map<std::string, std::string> environment_here() {
  constexpr std::array kPrefixes = {"UCX_", "GTOPK_", "PMIX_RANK", "PMIX_NAMESPACE"};
  constexpr std::array kNames = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"};
  std::map<std::string, std::string> found;
  for (char** each = environ; *each != nullptr; ++each) {
    const std::string_view line(*each);
    const std::string_view name = line.substr(0, line.find('='));
    const bool wanted = std::any_of(kPrefixes.begin(), kPrefixes.end(),
                                    [&](const char* prefix) { return name.starts_with(prefix); }) ||
                        std::find(kNames.begin(), kNames.end(), name) != kNames.end();
    if (!wanted || name.size() == line.size()) {
      continue;
    }
    found[std::string(name)] =
        name == "GTOPK_SECRET" ? "(set)" : std::string(line.substr(name.size() + 1));
  }
  return found;
}

std::vector<std::string> libraries_here(std::string_view name) {
  std::vector<std::string> found;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const std::size_t slash = line.find('/');
    if (slash == std::string::npos) {
      continue;
    }
    const std::string path = line.substr(slash);
    if (!fs::path(path).filename().string().starts_with(name)) {
      continue;
    }
    if (std::find(found.begin(), found.end(), path) == found.end()) {
      found.push_back(path);
    }
  }
  return found;
}

bool has_rdma(const std::string& libucp) {
  const auto modules = entries(fs::path(libucp).parent_path() / "ucx");
  return std::any_of(modules.begin(), modules.end(),
                     [](const std::string& name) { return name.starts_with("libuct_ib"); });
}

std::uint32_t allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? static_cast<std::uint32_t>(CPU_COUNT(&set))
                                                     : 0;
}

/// Whether this process itself listens on the port.
bool listens_here(std::uint16_t port) {
  const auto descriptors = entries("/proc/self/fd");
  return std::ranges::any_of(descriptors, [port](const std::string& each) {
    const int descriptor = std::atoi(each.c_str());
    int listens = 0;
    socklen_t size = sizeof listens;
    sockaddr_in6 address{};  // an IPv4 address has its port at the same offset
    socklen_t length = sizeof address;
    return getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 &&
           listens != 0 &&
           getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length) == 0 &&
           ntohs(address.sin6_port) == port;
  });
}

/// Whether UCX could accept connections on the port. Like UCX, this tries it.
bool is_free(std::uint16_t port) {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  const bool free = bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  close(socket);
  return free || listens_here(port);
}

std::optional<std::uint32_t> free_ports_of(const std::map<std::string, std::string>& environment) {
  const auto found = environment.find("GTOPK_PORTS");
  const auto ports =
      found == environment.end() ? std::nullopt : transport::port_range(found->second);
  if (!ports) {
    return std::nullopt;
  }
  std::uint32_t free = 0;
  for (std::uint32_t port = ports->first; port <= ports->last; ++port) {
    free += is_free(static_cast<std::uint16_t>(port)) ? 1 : 0;
  }
  return free;
}

std::uint64_t space_in(const char* folder) {
  struct statvfs system {};
  return statvfs(folder, &system) == 0 ? std::uint64_t{system.f_blocks} * system.f_frsize : 0;
}

std::uint64_t configured(int what) {
  return static_cast<std::uint64_t>(std::max(sysconf(what), 0L));
}

}  // namespace

std::string tunnel_of(const fs::path& folder) {
  // The kernel names WireGuard, VXLAN and Geneve; ARPHRD_TUNNEL and its kin are plain IP in IP.
  std::ifstream uevent(folder / "uevent");
  for (std::string line; std::getline(uevent, line);) {
    if (line == "DEVTYPE=wireguard") {
      return "WireGuard";
    }
    if (line == "DEVTYPE=vxlan" || line == "DEVTYPE=geneve") {
      return line.substr(line.find('=') + 1);
    }
  }
  const std::string name = folder.filename();
  if (fs::exists(folder / "tun_flags")) {  // a process handles its packets
    constexpr std::uint64_t kTap = 0x2;
    return name.starts_with("wg")                              ? "WireGuard"
           : name.starts_with("tailscale")                     ? "Tailscale"
           : (number_in(folder / "tun_flags", 16) & kTap) != 0 ? "TAP"
                                                               : "TUN";
  }
  constexpr std::array<std::uint64_t, 5> kIpInIp = {768, 769, 776, 778, 823};
  return std::ranges::count(kIpInIp, number_in(folder / "type")) != 0 ? "IP in IP" : "";
}

std::vector<Interface> interfaces_here() {
  const fs::path interfaces = "/sys/class/net";
  std::vector<Interface> found;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) {
    return found;
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, freeifaddrs);
  for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    auto known = std::find_if(found.begin(), found.end(), [&](const Interface& interface) {
      return interface.name == each->ifa_name;
    });
    if (known == found.end()) {
      known = found.insert(
          found.end(),
          {.name = each->ifa_name,
           .up = (each->ifa_flags & IFF_UP) != 0 && (each->ifa_flags & IFF_RUNNING) != 0,
           .loopback = (each->ifa_flags & IFF_LOOPBACK) != 0,
           .card = fs::exists(interfaces / each->ifa_name / "device"),
           .mtu = static_cast<std::uint32_t>(number_in(interfaces / each->ifa_name / "mtu")),
           .tunnel = tunnel_of(interfaces / each->ifa_name),
           .megabits = megabits_of(each->ifa_name)});
    }
    if (each->ifa_addr == nullptr) {
      continue;
    }
    if (std::string address = address_of(each->ifa_addr); !address.empty()) {
      known->addresses.push_back(std::move(address));
    }
  }
  return found;
}

Tcp tcp_here() {
  const fs::path settings = "/proc/sys/net/ipv4";
  const auto largest = [&](const char* name) {  // the last of three numbers
    const std::string line = first_line(settings / name);
    return std::strtoull(line.substr(line.find_last_of("\t ") + 1).c_str(), nullptr, 10);
  };
  return {.congestion_control = first_line(settings / "tcp_congestion_control"),
          .receive_buffer = largest("tcp_rmem"),
          .send_buffer = largest("tcp_wmem")};
}

Machine this_machine() {
  utsname kernel{};
  uname(&kernel);
  Machine machine{.name = kernel.nodename,
                  .kernel = fmt::format("{} {} {}", kernel.sysname, kernel.release, kernel.machine),
                  .cores = static_cast<std::uint32_t>(configured(_SC_NPROCESSORS_ONLN)),
                  .cores_allowed = allowed_cores(),
                  .memory = configured(_SC_PHYS_PAGES) * configured(_SC_PAGESIZE),
                  .open_files = limit_of(RLIMIT_NOFILE),
                  .locked_memory = limit_of(RLIMIT_MEMLOCK),
                  .shared_memory = space_in("/dev/shm"),
                  .tcp = tcp_here(),
                  .interfaces = interfaces_here(),
                  .rdma_devices = entries("/sys/class/infiniband"),
                  .gpus = entries("/proc/driver/nvidia/gpus"),
                  .environment = environment_here(),
                  .ucx_libraries = libraries_here("libucp.so"),
                  .ucx_has_rdma = false,
                  .topology = topology::probe_this_machine(),
                  .place = topology::job_place(topology::variable_here)};
  machine.ucx_has_rdma = !machine.ucx_libraries.empty() && has_rdma(machine.ucx_libraries.front());
  machine.free_ports = free_ports_of(machine.environment);
  machine.plan = topology::plan(machine.topology, machine.place);
  return machine;
}

}  // namespace gtopk::programs::info
