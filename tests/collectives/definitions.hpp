// Test support: the results of reductions over ranks, computed sequentially in the
// summation order that the headers in src/collectives state, and inputs for them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gtopk/types.hpp"
#include "tests/reference/reference.hpp"
#include "tests/support/cases.hpp"

namespace gtopk::test {

/// d elements: floats in [-2, 2), any integers, true or false.
[[nodiscard]] reference::Bytes random_elements(reference::Random& random, std::uint64_t d,
                                               DataType type);

/// A rank's factor in PREMUL_SUM, different on each rank; 1 for other operations.
[[nodiscard]] double factor_of(std::uint32_t rank, ReduceOp op);
/// Each rank's elements times its factor.
[[nodiscard]] std::vector<reference::Bytes> multiplied(std::vector<reference::Bytes> inputs,
                                                       DataType type, ReduceOp op);

/// left + right at every node of the tree. AVG only adds here.
[[nodiscard]] reference::Bytes tree_sum(const std::vector<reference::Bytes>& inputs,
                                        std::uint64_t d, DataType type, ReduceOp op);

/// The name of each rank's host; none: usual_hosts().
using Hosts = std::vector<std::string>;

/// The sum of the part of rank `part`, elements begin .. begin + size of every input, as
/// by_hosts.hpp defines it. AVG only adds here.
[[nodiscard]] reference::Bytes ring_sum(const std::vector<reference::Bytes>& inputs,
                                        std::uint32_t part, std::uint64_t begin, std::uint64_t size,
                                        DataType type, ReduceOp op, const Hosts& hosts = {});

/// The all-reduce as its header defines it.
[[nodiscard]] reference::Bytes defined_all_reduce(const std::vector<reference::Bytes>& inputs,
                                                  std::uint64_t d, DataType type, ReduceOp op,
                                                  const Hosts& hosts = {});

}  // namespace gtopk::test
