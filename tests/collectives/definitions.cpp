#include "tests/collectives/definitions.hpp"

#include <cstring>

#include "src/collectives/all_reduce.hpp"
#include "src/collectives/reduction.hpp"
#include "src/collectives/tree.hpp"

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

reference::Bytes ring_sum(const std::vector<reference::Bytes>& inputs, std::uint32_t chunk,
                          std::uint64_t begin, std::uint64_t size, DataType type, ReduceOp op) {
  const auto ranks = static_cast<std::uint32_t>(inputs.size());
  const std::size_t element = size_of(type);
  const auto values = [&](std::uint32_t rank) {
    return inputs[rank % ranks].data() + begin * element;
  };
  reference::Bytes sum(size * element);
  if (size != 0) {
    std::memcpy(sum.data(), values(chunk + 1), sum.size());
  }
  for (std::uint32_t step = 2; step <= ranks; ++step) {
    collectives::reduce(sum.data(), sum.data(), values(chunk + step), size, type, op);
  }
  return sum;
}

reference::Bytes defined_all_reduce(const std::vector<reference::Bytes>& inputs, std::uint64_t d,
                                    DataType type, ReduceOp op) {
  const auto ranks = static_cast<std::uint32_t>(inputs.size());
  reference::Bytes result;
  if (d * size_of(type) <= collectives::kRecursiveDoublingBytes) {
    result = tree_sum(inputs, d, type, op);
  } else {
    for (std::uint32_t chunk = 0; chunk < ranks; ++chunk) {
      const std::uint64_t begin = d * chunk / ranks;
      const std::uint64_t size = d * (chunk + 1) / ranks - begin;
      const reference::Bytes sum = ring_sum(inputs, chunk, begin, size, type, op);
      result.insert(result.end(), sum.begin(), sum.end());
    }
  }
  if (op == ReduceOp::kAvg) {
    collectives::divide(result.data(), d, type, ranks);
  }
  return result;
}

}  // namespace gtopk::test
