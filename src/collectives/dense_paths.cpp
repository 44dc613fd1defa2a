#include "src/collectives/dense_paths.hpp"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <string_view>

#include <fmt/format.h>

#include "gtopk/error.hpp"
#include "src/collectives/broadcast_tree.hpp"
#include "src/collectives/routes.hpp"

namespace gtopk::collectives {

PathSetting path_setting() {
  const char* const value = std::getenv("GTOPK_DENSE");
  const std::string_view said = value == nullptr || *value == '\0' ? "auto" : value;
  if (said == "auto") {
    return PathSetting::kAuto;
  }
  if (said == "tree") {
    return PathSetting::kTree;
  }
  if (said == "direct") {
    return PathSetting::kDirect;
  }
  throw Error(ErrorKind::kInvalidArgument,
              fmt::format("GTOPK_DENSE is '{}': expected auto, tree or direct", said));
}

std::string to_string(PathSetting setting) {
  switch (setting) {
    case PathSetting::kAuto:
      return "auto";
    case PathSetting::kTree:
      return "tree";
    case PathSetting::kDirect:
      return "direct";
  }
  return "unknown";
}

DensePaths::DensePaths(const engine::HostMap& hosts)
    : ranks_(hosts.ranks()), hosts_(hosts.hosts()) {
  const Routes routes(hosts);
  each_ = routes.two_levels();
  const auto step = [&](Route route) {
    tree_steps_ += 1;
    tree_loads_ += hosts_ == 1 ? 1 : route.crossing;
  };
  if (routes.tree().folds(0)) {
    step(routes.fold());
    step(routes.fold());
  }
  for (std::uint32_t round = 0; round < routes.tree().rounds(); ++round) {
    step(routes.swap(round));
  }
  direct_messages_ = ranks_ - 1;
  broadcast_messages_ = ranks_ - 1;
  if (hosts_ > 1) {
    direct_messages_ = 0;
    broadcast_messages_ = 0;
    for (std::uint32_t host = 0; host < hosts.hosts(); ++host) {
      const auto members = static_cast<double>(hosts.ranks_of(host).size());
      direct_messages_ = std::max(direct_messages_, members * (ranks_ - members));
      broadcast_messages_ = std::max(broadcast_messages_, ranks_ - members);
    }
  }
}

PathCosts DensePaths::usual() const {
  // Assume threads that communicate through shared memory, and 1 Gbit/s between hosts.
  const bool one_host = hosts_ == 1;
  const double message = one_host ? 10e3 : 40e3;
  const double further = one_host ? 4e3 : 10e3;
  return {.tree = tree_steps_ * message,
          .direct = message + std::max(0.0, ranks_ - 2) * further,
          .byte = one_host ? 0.3 : 8};
}

double DensePaths::along_tree(std::size_t bytes, const PathCosts& costs) const {
  return costs.tree + tree_loads_ * static_cast<double>(bytes) * costs.byte;
}

double DensePaths::directly(std::size_t bytes, const PathCosts& costs) const {
  return costs.direct + direct_messages_ * static_cast<double>(bytes) / ranks_ * costs.byte;
}

bool DensePaths::reduce_directly(std::size_t bytes, const PathCosts& costs) const {
  return may_go_directly() && 2 * directly(bytes, costs) < along_tree(bytes, costs);
}

bool DensePaths::reduce_scatter_directly(std::size_t bytes, const PathCosts& costs) const {
  return may_go_directly() && directly(bytes, costs) < along_tree(bytes, costs);
}

bool DensePaths::gather_directly(std::size_t bytes, const PathCosts& costs) const {
  const double places = each_ == 0 ? ranks_ : hosts_;
  const double steps = each_ == 0 ? ranks_ - 1 : (hosts_ - 1) + (each_ - 1);
  const double round_rings = costs.tree + steps * alpha(costs) +
                             (places - 1) / places * static_cast<double>(bytes) * costs.byte;
  return may_go_directly() && directly(bytes, costs) < round_rings;
}

bool DensePaths::broadcast_directly(std::size_t bytes, const PathCosts& costs) const {
  const double sent = broadcast_messages_ * static_cast<double>(bytes) * costs.byte;
  return may_go_directly() && costs.direct + sent < along_tree(bytes, costs);
}

bool DensePaths::broadcast_down_a_chain(std::size_t bytes, const PathCosts& costs) const {
  if (hosts_ < 3) {
    return false;
  }
  const auto children = std::bit_width(static_cast<std::uint32_t>(hosts_) - 1);
  const double all = static_cast<double>(bytes) * costs.byte;
  const double one = alpha(costs) + static_cast<double>(broadcast_piece(bytes)) * costs.byte;
  return all + (hosts_ - 1) * one < children * (all + alpha(costs));
}

}  // namespace gtopk::collectives
