// Test support: problems of the sparse all-reduce as collectives, run over in-process ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gtopk/collectives.hpp"
#include "gtopk/types.hpp"
#include "src/gtopk/algorithms/sparse_all_reduce.hpp"
#include "tests/reference/reference.hpp"
#include "tests/support/inproc_ranks.hpp"

namespace gtopk::support {

/// One rank's input to a sparse all-reduce, and afterwards its output.
struct Tensor {
  reference::Bytes values;
  std::optional<reference::Bytes> residual;
};
[[nodiscard]] Tensor tensor_of(const reference::Problem& problem, std::uint32_t rank);
/// The call of a problem on `tensor`, which must live as long as the operation.
[[nodiscard]] Collective sparse_all_reduce(const reference::Problem& problem, Tensor& tensor);

/// Runs the problem on `ranks`; empty if every rank succeeded with the reference's tensor and
/// residual, bit for bit, else what differs first.
[[nodiscard]] std::string differs_from_reference(InprocRanks& ranks,
                                                 const reference::Problem& problem);

/// The errors of ranks that find a call or a message wrong, if `byte` of the `message`-th message
/// of the problem's exchange, from 0, is flipped. Checks that the group works afterwards.
[[nodiscard]] std::string refusal_of_a_flip(const reference::Problem& problem,
                                            std::uint64_t message, std::size_t byte);

/// Checks the group with an all-reduce of one integer per rank: empty if it gives the sum, else
/// what went wrong.
[[nodiscard]] std::string group_works(InprocRanks& ranks);

}  // namespace gtopk::support
