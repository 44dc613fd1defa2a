#include "tests/collectives/definitions.hpp"

#include <algorithm>
#include <cstddef>
#include <span>

#include "src/collectives/all_reduce.hpp"
#include "src/collectives/reduction.hpp"
#include "src/collectives/tree.hpp"
#include "src/engine/host_map.hpp"
#include "tests/reference/hosts.hpp"

namespace gtopk::test {

reference::Bytes random_elements(reference::Random& random, std::uint64_t d, DataType type) {
  reference::Bytes bytes(d * size_of(type));
  if (is_floating(type) || is_complex(type)) {
    const DataType part = type == DataType::kComplex64    ? DataType::kFloat32
                          : type == DataType::kComplex128 ? DataType::kFloat64
                                                          : type;
    for (std::uint64_t i = 0; i < bytes.size() / size_of(part); ++i) {
      reference::store(part, bytes, i, 4 * random.uniform() - 2);
    }
  } else {
    const std::uint64_t below = type == DataType::kBool ? 2 : 256;
    for (std::byte& byte : bytes) {
      byte = static_cast<std::byte>(random.below(below));
    }
  }
  return bytes;
}

double factor_of(std::uint32_t rank, ReduceOp op) {
  return op == ReduceOp::kPremulSum ? 1 / (rank + 1.5) : 1;
}

std::vector<reference::Bytes> multiplied(std::vector<reference::Bytes> inputs, DataType type,
                                         ReduceOp op) {
  if (op != ReduceOp::kPremulSum) {
    return inputs;
  }
  for (std::uint32_t rank = 0; rank < inputs.size(); ++rank) {
    reference::Bytes& input = inputs[rank];
    collectives::multiply(input.data(), input.size() / size_of(type), type, factor_of(rank, op));
  }
  return inputs;
}

reference::Bytes tree_sum(const std::vector<reference::Bytes>& inputs, std::uint64_t d,
                          DataType type, ReduceOp op) {
  const auto ranks = static_cast<std::uint32_t>(inputs.size());
  const collectives::Tree tree(ranks);
  const auto sum = [&](const reference::Bytes& left, const reference::Bytes& right) {
    reference::Bytes node(left.size());
    collectives::reduce(node.data(), left.data(), right.data(), d, type, op);
    return node;
  };
  std::vector<reference::Bytes> nodes;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    if (tree.folded_away(rank)) {
      continue;
    }
    nodes.push_back(tree.folds(rank) ? sum(inputs[rank], inputs[rank + 1]) : inputs[rank]);
  }
  while (nodes.size() > 1) {
    for (std::size_t pair = 0; pair < nodes.size() / 2; ++pair) {
      nodes[pair] = sum(nodes[2 * pair], nodes[2 * pair + 1]);
    }
    nodes.resize(nodes.size() / 2);
  }
  return nodes.front();
}

namespace {

/// The sum of what each place of a ring has, which ends at `place`.
template <class BytesAt>
reference::Bytes round_a_ring(std::size_t places, std::size_t place, std::uint64_t size,
                              DataType type, ReduceOp op, BytesAt bytes_at) {
  reference::Bytes sum = bytes_at((place + 1) % places);
  for (std::size_t step = 2; step <= places; ++step) {
    const reference::Bytes next = bytes_at((place + step) % places);
    collectives::reduce(sum.data(), sum.data(), next.data(), size, type, op);
  }
  return sum;
}

}  // namespace

reference::Bytes ring_sum(const std::vector<reference::Bytes>& inputs, std::uint32_t part,
                          std::uint64_t begin, std::uint64_t size, DataType type, ReduceOp op,
                          const Hosts& hosts) {
  const auto ranks = static_cast<std::uint32_t>(inputs.size());
  const engine::HostMap map(hosts.empty() ? support::usual_hosts(ranks) : hosts);
  const std::size_t element = size_of(type);
  const auto values = [&](std::uint32_t rank) {
    const auto from = inputs[rank].begin() + static_cast<std::ptrdiff_t>(begin * element);
    return reference::Bytes(from, from + static_cast<std::ptrdiff_t>(size * element));
  };
  const auto place_in = [&](std::span<const std::uint32_t> on) {
    return static_cast<std::size_t>(std::ranges::find(on, part) - on.begin());
  };
  std::vector<std::uint32_t> all;
  std::size_t fewest = ranks;
  std::size_t most = 0;
  for (std::uint32_t host = 0; host < map.hosts(); ++host) {
    const auto on = map.ranks_of(host);
    all.insert(all.end(), on.begin(), on.end());
    fewest = std::min(fewest, on.size());
    most = std::max(most, on.size());
  }
  if (map.hosts() == 1 || most == 1 || fewest != most) {
    return round_a_ring(ranks, place_in(all), size, type, op,
                        [&](std::size_t at) { return values(all[at]); });
  }
  const std::uint32_t home = map.host_of(part);
  const std::size_t place = place_in(map.ranks_of(home));
  return round_a_ring(map.hosts(), home, size, type, op, [&](std::size_t host) {
    const auto on = map.ranks_of(static_cast<std::uint32_t>(host));
    return round_a_ring(most, place, size, type, op,
                        [&](std::size_t at) { return values(on[at]); });
  });
}

reference::Bytes defined_all_reduce(const std::vector<reference::Bytes>& inputs, std::uint64_t d,
                                    DataType type, ReduceOp op, const Hosts& hosts) {
  const auto ranks = static_cast<std::uint32_t>(inputs.size());
  reference::Bytes result;
  if (d * size_of(type) <= collectives::kRecursiveDoublingBytes) {
    result = tree_sum(inputs, d, type, op);
  } else {
    for (std::uint32_t chunk = 0; chunk < ranks; ++chunk) {
      const std::uint64_t begin = d * chunk / ranks;
      const std::uint64_t size = d * (chunk + 1) / ranks - begin;
      const reference::Bytes sum = ring_sum(inputs, chunk, begin, size, type, op, hosts);
      result.insert(result.end(), sum.begin(), sum.end());
    }
  }
  if (op == ReduceOp::kAvg) {
    collectives::divide(result.data(), d, type, ranks);
  }
  return result;
}

}  // namespace gtopk::test
