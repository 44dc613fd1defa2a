// Torch backend: a coalescing window: operations that are called together, and the one Work that
// stands for them.
#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <mutex>
#include <optional>
#include <vector>

#include "src/torch_backend/torch_headers.hpp"

namespace gtopk::torch_backend {

using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;

/// Has ended when each of its Works has. Its error is that of the first of them, in the order of
/// the calls, which has one; its result is theirs, one after the other.
class CoalescedWork final : public c10d::Work {
 public:
  CoalescedWork(int rank, Works works);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  /// For all of them, also where one fails early: none is under way any more when this returns or
  /// throws, unless the time is up.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  const Works works_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // under mutex_
};

/// Any thread.
class Window {
 public:
  void open();
  /// What was called since it was opened; nothing where it is not open.
  [[nodiscard]] Works close();
  /// Where it is open.
  void note(const c10::intrusive_ptr<c10d::Work>& work);

 private:
  /// In a window that Python has left by an error of its own, nobody asks for Works any more: from
  /// here on those that have ended well are let go.
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
