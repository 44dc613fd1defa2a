// Torch backend: converts tensors' types and reductions to the core's.
#pragma once

#include <string>

#include "gtopk/types.hpp"
#include "src/torch_backend/torch_headers.hpp"

namespace gtopk::torch_backend {

/// Throws ValueError for a type that cannot be reduced.
[[nodiscard]] DataType data_type(const at::Tensor& tensor);
/// The type for moving, not reducing; it accepts every type. Types unknown to the core keep torch's
/// number.
[[nodiscard]] DataType type_to_move(const at::Tensor& tensor);
/// Replaces torch's type numbers in the core's message by their names.
[[nodiscard]] std::string with_names_of_types(std::string text);
/// Throws NotImplementedError for PREMUL_SUM, which also has a factor; see reduction().
[[nodiscard]] ReduceOp reduce_op(const c10d::ReduceOp& op);

struct Reduction {
  ReduceOp op = ReduceOp::kSum;
  double factor = 1;  ///< for PREMUL_SUM: it multiplies this rank's elements first
};
/// Also accepts PREMUL_SUM; a factor in a tensor is read immediately. Throws ValueError.
[[nodiscard]] Reduction reduction(const c10d::ReduceOp& op);

/// Returns the only tensor of a list, after checking that it is dense and on the CPU or a supported
/// device. `what` names the call in errors.
[[nodiscard]] const at::Tensor& only(const std::vector<at::Tensor>& tensors, const char* what);
void check_dense(const at::Tensor& tensor, const char* what);

}  // namespace gtopk::torch_backend
