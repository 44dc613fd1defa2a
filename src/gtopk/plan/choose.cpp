#include "src/gtopk/plan/choose.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace gtopk::sparse {
namespace {

/// Explains a candidate: "rs-ag: 1.234 ms predicted (latency 0.400, transfer 0.700, computing
/// 0.134), 139060 bytes over a host's link"
std::string explained(const Candidate& candidate, const Costs& costs) {
  constexpr double kMillisecond = 1e6;
  const Nanoseconds price = sparse::price(candidate.work, costs);
  std::string text =
      fmt::format("{}: {:.3f} ms predicted (latency {:.3f}, transfer {:.3f}, computing {:.3f})",
                  candidate.algorithm, price.total() / kMillisecond, price.latency / kMillisecond,
                  price.transfer / kMillisecond, price.computing / kMillisecond);
  if (candidate.work.host_bytes > 0) {
    text += fmt::format(", {:.0f} bytes over a host's link", candidate.work.host_bytes);
  }
  return text;
}

}  // namespace

Chosen choose(std::span<const Candidate> candidates, const Costs& costs) {
  const auto total = [&](const Candidate& candidate) {
    return price(candidate.work, costs).total();
  };
  // Here and below the first of equal candidates is taken, so ties follow the registry's order.
  const auto cheapest = std::ranges::min_element(candidates, {}, total);
  Chosen chosen;
  chosen.index = static_cast<std::size_t>(cheapest - candidates.begin());
  const Candidate* next = nullptr;
  for (const Candidate& candidate : candidates) {
    chosen.predictions.push_back({.algorithm = std::string(candidate.algorithm),
                                  .seconds = total(candidate) * 1e-9,
                                  .messages = candidate.work.messages(),
                                  .bytes = candidate.work.bytes(),
                                  .host_bytes = candidate.work.host_bytes});
    if (&candidate != &*cheapest && (next == nullptr || total(candidate) < total(*next))) {
      next = &candidate;
    }
  }
  chosen.reason = next == nullptr
                      ? fmt::format("the only one allowed; {}", explained(*cheapest, costs))
                      : fmt::format("the cheapest of {}; {}; next {}", candidates.size(),
                                    explained(*cheapest, costs), explained(*next, costs));
  return chosen;
}

}  // namespace gtopk::sparse
