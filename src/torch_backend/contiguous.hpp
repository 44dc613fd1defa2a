// Torch backend: a tensor's elements as the core sees them, contiguous bytes, and the way back.
//
// All of it happens below autograd, as in c10d's own backends: nothing is recorded, no version is
// counted, and inference tensors are written like others.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gtopk/buffer.hpp"
#include "src/torch_backend/torch_headers.hpp"

namespace gtopk::torch_backend {

/// While this lives, autograd does not see what this thread does to tensors.
using BelowAutograd = at::AutoDispatchBelowADInplaceOrView;

/// How the core accesses the elements of a tensor on a device.
enum class Staging : std::uint8_t {
  kStaged,   ///< in pinned memory, with copies to and from it
  kInPlace,  ///< on the device: the transport takes its memory
};

struct Contiguous {
  at::Tensor tensor;
  at::Tensor memory;  ///< contiguous: the tensor itself, or a copy in host memory
  /// Held separately: `tensor.data = …` gives a tensor new memory while the network uses this one.
  c10::Storage storage = memory.storage();

  /// Both are in host memory.
  [[nodiscard]] bool is_copy() const { return !memory.is_same(tensor) && !is_staged(); }
  /// The tensor is on a device, and the memory is the host's.
  [[nodiscard]] bool is_staged() const {
    return !tensor.device().is_cpu() && memory.device().is_cpu();
  }
  /// Elements of this type; see type_to_move() for those that are only moved.
  [[nodiscard]] Buffer buffer(DataType dtype) const;
  [[nodiscard]] ConstBuffer read(DataType dtype) const;
  /// Writes a copy back to the tensor. Any thread; throws what torch throws.
  void copy_back() const;
};

/// For reading. For a tensor on a device it is pinned memory that holds the elements once the
/// operation's DeviceCall says so.
[[nodiscard]] Contiguous contiguous(const at::Tensor& tensor, Staging staging = Staging::kStaged);
/// Also for writing. Throws ValueError if elements of the tensor share memory.
[[nodiscard]] Contiguous writable(const at::Tensor& tensor, const char* what);
/// For writing only: nothing is read from a device.
[[nodiscard]] Contiguous destination(const at::Tensor& tensor, const char* what,
                                     Staging staging = Staging::kStaged);

/// Throws ValueError as writable() does.
void check_writable(const at::Tensor& tensor, const char* what);

/// Whether the tensor's elements are already stored one after the other, for Staging::kInPlace.
[[nodiscard]] bool lies_in_order(const at::Tensor& tensor);

/// A range of contiguous elements.
[[nodiscard]] Buffer part_of(const Buffer& all, std::uint64_t begin, std::uint64_t count);

/// Copies `from`, wherever it is, into `to`, contiguous memory of as many elements, as contiguous()
/// does.
void copy_elements(const at::Tensor& to, const at::Tensor& from);

}  // namespace gtopk::torch_backend
