// Torch backend: a tensor's elements as the core sees them, which is contiguous bytes, and the
// conversion back.
//
// Everything here happens below autograd, as in c10d's own backends: nothing is recorded, versions
// are not counted, and inference tensors are written like others.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gtopk/buffer.hpp"
#include "src/torch_backend/torch_headers.hpp"

namespace gtopk::torch_backend {

/// While an object of this type lives, autograd does not see what this thread does to tensors.
using BelowAutograd = at::AutoDispatchBelowADInplaceOrView;

/// How the core accesses the elements of a tensor on a device.
enum class Staging : std::uint8_t {
  kStaged,   ///< in pinned memory, with copies to and from it
  kInPlace,  ///< on the device, whose memory the transport takes
};

struct Contiguous {
  at::Tensor tensor;
  at::Tensor memory;  ///< contiguous: the tensor itself, or a copy in host memory
  /// The storage is held separately, because `tensor.data = …` may give a tensor new memory while
  /// the network uses this memory.
  c10::Storage storage = memory.storage();

  /// Whether the memory is a copy; both are then in host memory.
  [[nodiscard]] bool is_copy() const { return !memory.is_same(tensor) && !is_staged(); }
  /// Whether the tensor is on a device and the memory is host memory.
  [[nodiscard]] bool is_staged() const {
    return !tensor.device().is_cpu() && memory.device().is_cpu();
  }
  /// The elements as a buffer of this type; see type_to_move() for elements that are only moved.
  [[nodiscard]] Buffer buffer(DataType dtype) const;
  [[nodiscard]] ConstBuffer read(DataType dtype) const;
  /// Writes a copy back to the tensor. May be called on any thread; throws what torch throws.
  void copy_back() const;
};

/// Returns the elements for reading. For a tensor on a device this is pinned memory, which holds
/// the elements once the operation's DeviceCall says so.
[[nodiscard]] Contiguous contiguous(const at::Tensor& tensor, Staging staging = Staging::kStaged);
/// Returns the elements for reading and writing. Throws ValueError if elements of the tensor share
/// memory.
[[nodiscard]] Contiguous writable(const at::Tensor& tensor, const char* what);
/// Returns the elements for writing only, so nothing is read from a device.
[[nodiscard]] Contiguous destination(const at::Tensor& tensor, const char* what,
                                     Staging staging = Staging::kStaged);

/// Throws ValueError as writable() does.
void check_writable(const at::Tensor& tensor, const char* what);

/// Whether the tensor's elements are already stored one after the other, as Staging::kInPlace
/// needs.
[[nodiscard]] bool lies_in_order(const at::Tensor& tensor);

/// Returns a range of contiguous elements.
[[nodiscard]] Buffer part_of(const Buffer& all, std::uint64_t begin, std::uint64_t count);

/// Copies `from`, wherever it is, into `to`, which is contiguous memory for the same number of
/// elements, like contiguous() does.
void copy_elements(const at::Tensor& to, const at::Tensor& from);

}  // namespace gtopk::torch_backend
