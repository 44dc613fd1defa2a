// Torch backend: one operation as torch sees it: a Work to wait for, with a future.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "gtopk/communicator.hpp"
#include "torch_backend/completer.hpp"
#include "torch_backend/torch_headers.hpp"

namespace gtopk::torch_backend {

/// Throws what Python expects: ValueError for bad arguments, NotImplementedError, DistBackendError
/// for the rest.
[[noreturn]] void rethrow_for_python(const Error& error);

class GtopkWork final : public c10d::Work {
 public:
  /// `held` are tensors that must live until the network has let go of them; `result` is the
  /// future's value.
  GtopkWork(int rank, c10d::OpType type, const char* title, const std::vector<at::Tensor>& inputs,
            std::vector<at::Tensor> held, std::vector<at::Tensor> result);

  std::vector<at::Tensor> result() override { return result_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  uint64_t getSequencenumber() const override { return sequence_; }

  /// How the core is to be called: `finally` runs on success, before anybody is told (copying
  /// results to where the caller wants them).
  [[nodiscard]] Call call(Completer& completer, std::chrono::milliseconds timeout,
                          std::function<void()> finally = nullptr);

  void set_sequence(uint64_t sequence) { sequence_ = sequence; }

 private:
  void complete(Completer& completer, std::exception_ptr error,
                const std::function<void()>& finally);

  std::vector<at::Tensor> held_;
  std::vector<at::Tensor> result_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  uint64_t sequence_ = 0;
};

}  // namespace gtopk::torch_backend
