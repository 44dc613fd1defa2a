// Torch backend: tensors as the core sees them: type, and contiguous bytes.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "gtopk/types.hpp"
#include "torch_backend/torch_headers.hpp"

namespace gtopk::torch_backend {

/// Throws ValueError for a type that has no reduction here.
[[nodiscard]] DataType data_type(const at::Tensor& tensor);
/// Throws NotImplementedError for PREMUL_SUM.
[[nodiscard]] ReduceOp reduce_op(const c10d::ReduceOp& op);
/// Throws ValueError, or NotImplementedError for names that are not there yet.
[[nodiscard]] Algorithm algorithm_named(const std::string& name);
[[nodiscard]] PutBack put_back_named(const std::string& name);
[[nodiscard]] Selector selector_named(const std::string& name);

/// The only tensor of a list, checked: dense, on the CPU. `what` names the call in errors.
[[nodiscard]] const at::Tensor& only(const std::vector<at::Tensor>& tensors, const char* what);
void check_dense_cpu(const at::Tensor& tensor, const char* what);

/// Memory of a contiguous tensor.
[[nodiscard]] std::span<std::byte> bytes_of(const at::Tensor& tensor);

}  // namespace gtopk::torch_backend
