// Torch backend: the record that a coalescing window keeps of operations that have succeeded.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "src/torch_backend/torch_headers.hpp"
#include "src/torch_backend/work.hpp"

namespace gtopk::torch_backend {

/// Operations that have succeeded, one after the other. Before hold() it does not own their
/// tensors: tensors that nothing else uses are freed and missing from the result.
class PastWorks final : public TimedWork {
 public:
  /// Appends a Work that has succeeded, or other past ones. Frees no tensor.
  void add(TimedWork& work);
  /// Takes ownership of the remaining tensors from now on.
  void hold();

  bool isCompleted() override { return true; }
  bool wait(std::chrono::milliseconds /*timeout*/) override { return true; }
  std::vector<at::Tensor> result() override { return held_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  uint64_t getSequencenumber() const override { return sequence_; }
  Span span() const override { return span_.value(); }

 private:
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

  std::vector<WeakTensor> tensors_;
  std::size_t purge_at_ = 4096;  ///< at this size, freed tensors are removed
  std::vector<at::Tensor> held_;
  std::optional<Span> span_;
  uint64_t sequence_ = 0;
};

}  // namespace gtopk::torch_backend
