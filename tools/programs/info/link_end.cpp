#include "tools/programs/info/link_end.hpp"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "tools/programs/info/machine.hpp"

namespace gtopk::programs::info {
namespace {

std::string congestion_control_of_busiest() {
  std::string control;
  std::uint64_t most = 0;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", none)) {
    const int descriptor = std::atoi(entry.path().filename().c_str());
    tcp_info info{};
    socklen_t size = sizeof info;
    std::array<char, 16> name{};
    socklen_t length = name.size() - 1;
    if (getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 ||
        getsockopt(descriptor, IPPROTO_TCP, TCP_CONGESTION, name.data(), &length) != 0) {
      continue;
    }
    if (const std::uint64_t carried = info.tcpi_bytes_sent + info.tcpi_bytes_received;
        carried > most) {
      most = carried;
      control = name.data();
    }
  }
  return control;
}

}  // namespace

LinkEnd link_end_here(const std::string& lanes) {
  constexpr std::string_view kTcp = "tcp/";
  const std::size_t at = lanes.find(kTcp);
  if (at == std::string::npos) {
    return {};
  }
  const std::size_t begin = at + kTcp.size();
  const std::string name = lanes.substr(begin, lanes.find(',', begin) - begin);
  const Tcp tcp = tcp_here();
  LinkEnd end{.interface = name,
              .congestion_control = congestion_control_of_busiest(),
              .receive_buffer = tcp.receive_buffer,
              .send_buffer = tcp.send_buffer};
  const std::vector<Interface> interfaces = interfaces_here();
  const auto known = std::ranges::find(interfaces, name, &Interface::name);
  if (known != interfaces.end()) {
    end.mtu = known->mtu;
    end.tunnel = known->tunnel;
  }
  return end;
}

std::string to_text(const LinkEnd& end) {
  return fmt::format("{}{}MTU {}, {}", end.tunnel, end.tunnel.empty() ? "" : ", ", end.mtu,
                     end.congestion_control);
}

}  // namespace gtopk::programs::info
