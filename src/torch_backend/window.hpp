// Torch backend: a coalescing window: operations called together, and the one Work for all of them.
#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <mutex>
#include <optional>
#include <vector>

#include "src/torch_backend/torch_headers.hpp"
#include "src/torch_backend/work.hpp"

namespace gtopk::torch_backend {

using Works = std::vector<c10::intrusive_ptr<TimedWork>>;

/// Completes when all of its Works have. Its error is the first of theirs, in call order; its
/// result is the concatenation of theirs.
class CoalescedWork final : public c10d::Work {
 public:
  CoalescedWork(int rank, Works works);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  /// Waits for all of them, even if one fails early: none is in flight any more when this returns
  /// or throws, unless the timeout has passed.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  /// Of the first that ended the group; else of the first that failed.
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  /// Of its last collective, which is the group's number then; 0 if there is none.
  uint64_t getSequencenumber() const override;
  /// Milliseconds from the first call to the last end; throws before that.
  float getDuration() const override;

 private:
  const Works works_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // under mutex_
};

/// Any thread.
class Window {
 public:
  void open();
  /// What was called since it was opened; nothing if it is not open.
  [[nodiscard]] Works close();
  /// Where it is open.
  void note(const c10::intrusive_ptr<GtopkWork>& work);

 private:
  /// If Python leaves a window by an exception of its own, nobody asks for its Works any more: from
  /// this many on, those that have succeeded are released.
  static constexpr std::size_t kMany = 4096;

  std::mutex mutex_;
  std::optional<Works> works_;
};

/// Closes the window when its scope is left by an exception.
class ClosesOnError {
 public:
  explicit ClosesOnError(Window& window)
      : window_(window), exceptions_(std::uncaught_exceptions()) {}
  ClosesOnError(const ClosesOnError&) = delete;
  ClosesOnError& operator=(const ClosesOnError&) = delete;
  ClosesOnError(ClosesOnError&&) = delete;
  ClosesOnError& operator=(ClosesOnError&&) = delete;
  ~ClosesOnError();

 private:
  Window& window_;
  int exceptions_;
};

}  // namespace gtopk::torch_backend
