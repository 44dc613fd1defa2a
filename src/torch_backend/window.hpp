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
  /// Waits for all of them, even if one fails early: when this returns or throws, none is in flight
  /// any more, unless the timeout has passed.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  /// That of the first Work that ended the group, or else of the first that failed.
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  /// That of its last collective; 0 if there is none.
  uint64_t getSequencenumber() const override;
  /// Milliseconds from the first call to the last end; throws before that.
  float getDuration() const override;

 private:
  const Works works_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // guarded by mutex_
};

/// Any thread.
class Window {
 public:
  /// Joins one that is open, unless a call has raised in it.
  void open();
  /// What was called since the window was opened; nothing if it is not open.
  [[nodiscard]] Works close();
  /// Adds the Work if the window is open. Returns Works that it drops, to be freed without locks:
  /// tensors may be Python's.
  [[nodiscard]] Works note(const c10::intrusive_ptr<GtopkWork>& work);
  /// A call has raised. If the exception is caught, the window stays open. If not, torch never
  /// closes it, so the next window does not join it.
  void raised();

 private:
  /// If Python leaves a window by an exception, its Works may never be requested. So from this many
  /// on, or from the first on after a call that raised, PastWorks replace those that have
  /// succeeded.
  static constexpr std::size_t kMany = 4096;

  struct Called {
    Works works;
    bool raised = false;
    std::size_t release_at = kMany;  ///< replace Works when this many are held
    std::size_t held = 0;            ///< Works that are not past ones

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
