// Torch backend: a coalescing window: operations called together, and one Work for all of them.
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

/// A Work that completes when all of its Works have completed. Its error is their first error in
/// call order; its result is the concatenation of their results.
class CoalescedWork final : public c10d::Work {
 public:
  CoalescedWork(int rank, Works works);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  /// Waits for all Works, even if one fails early. When it returns or throws, none is in flight any
  /// more, unless the timeout has passed.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  /// The result of the first Work that ended the group, or else of the first that failed.
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  /// The number of its last collective; 0 if there is none.
  uint64_t getSequencenumber() const override;
  /// Milliseconds from the first call to the last end; throws before that.
  float getDuration() const override;

 private:
  const Works works_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // guarded by mutex_
};

/// A window. It may be used on any thread.
class Window {
 public:
  /// Opens a window, or joins an open one unless a call has raised in it.
  void open();
  /// Closes the window. Returns the Works called since it was opened; none if it is not open.
  [[nodiscard]] Works close();
  /// Adds the Work if the window is open. Returns Works that it drops, which must be freed without
  /// locks because tensors may belong to Python.
  [[nodiscard]] Works note(const c10::intrusive_ptr<GtopkWork>& work);
  /// Must be called when a call has raised. If the exception is caught, the window stays open. If
  /// not, torch never closes the window, so the next window does not join it.
  void raised();

 private:
  /// If Python leaves a window by an exception, its Works may never be requested. So from this many
  /// Works on, or from the first on after a call that raised, PastWorks replace Works that have
  /// succeeded.
  static constexpr std::size_t kMany = 4096;

  struct Called {
    Works works;
    bool raised = false;
    std::size_t release_at = kMany;  ///< replace Works when this many are held
    std::size_t held = 0;            ///< number of Works that are not past

    [[nodiscard]] Works release();
  };

  std::mutex mutex_;
  std::optional<Called> called_;
};

/// Notifies the window when an exception leaves its scope.
class NotesError {
 public:
  explicit NotesError(Window& window) : window_(window), exceptions_(std::uncaught_exceptions()) {}
  NotesError(const NotesError&) = delete;
  NotesError& operator=(const NotesError&) = delete;
  NotesError(NotesError&&) = delete;
  NotesError& operator=(NotesError&&) = delete;
  ~NotesError();

 private:
  Window& window_;
  int exceptions_;
};

}  // namespace gtopk::torch_backend
