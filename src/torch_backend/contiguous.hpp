// Torch backend: a tensor's elements as the core sees them, contiguous bytes, and the way back.
//
// All of it happens below autograd: nothing is recorded, no version is counted, and inference
// tensors are written like others, as c10d's own backends do.
#pragma once

#include <cstddef>
#include <span>

#include "src/torch_backend/torch_headers.hpp"

namespace gtopk::torch_backend {

/// Nothing that this thread does to tensors while it lives is seen by autograd.
using BelowAutograd = at::AutoDispatchBelowADInplaceOrView;

struct Contiguous {
  at::Tensor tensor;
  at::Tensor memory;  ///< contiguous, the host's: the tensor itself, or a copy of it

  /// In the host's memory, both.
  [[nodiscard]] bool is_copy() const { return !memory.is_same(tensor) && !is_staged(); }
  /// The tensor is on a device.
  [[nodiscard]] bool is_staged() const { return !tensor.device().is_cpu(); }
  [[nodiscard]] std::span<std::byte> bytes() const;
  [[nodiscard]] std::span<const std::byte> read() const;
  /// Writes a copy back to the tensor. Any thread; throws what torch throws.
  void copy_back() const;
};

/// For reading. Of a tensor on a device this is pinned memory that holds its elements once the
/// operation's DeviceCall says so.
[[nodiscard]] Contiguous contiguous(const at::Tensor& tensor);
/// For writing, too. Throws ValueError where elements of the tensor share memory.
[[nodiscard]] Contiguous writable(const at::Tensor& tensor, const char* what);
/// For writing alone: on a device nothing is read.
[[nodiscard]] Contiguous room(const at::Tensor& tensor, const char* what);

/// Throws ValueError as writable() does.
void check_writable(const at::Tensor& tensor, const char* what);

/// `from`, wherever it is, into `to`, contiguous memory of as many elements, as contiguous() does.
void copy_elements(const at::Tensor& to, const at::Tensor& from);

}  // namespace gtopk::torch_backend
