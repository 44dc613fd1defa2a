// Engine: work that nothing of the engine's does, such as a device's: begun at once, and awaited
// like a message. Whoever does it calls back, on any thread.
//
//   Errand merging(group, [&](Errand::Done done) { device.merge(lists, std::move(done)); });
//   ... other messages ...
//   co_await merging;
#pragma once

#include <coroutine>
#include <exception>
#include <functional>
#include <memory>

#include "src/engine/group_view.hpp"

namespace gtopk::engine {

/// Awaiting ends when the work is done, and rethrows its error; or when the operation fails. The
/// operation, and so the caller's memory, lives until the work is done in any case. One at a time
/// may be awaited.
class [[nodiscard]] Errand {
 public:
  /// To be called once: null, or why the work was not done. Later than the engine's end it does
  /// nothing.
  using Done = std::function<void(std::exception_ptr)>;

  /// `begin` must not block, and may call what it is given at once. Throws what it throws, or the
  /// cause if the operation has failed.
  Errand(GroupView& group, const std::function<void(Done)>& begin);
  Errand(const Errand&) = delete;
  Errand& operator=(const Errand&) = delete;
  Errand(Errand&&) = delete;
  Errand& operator=(Errand&&) = delete;
  ~Errand();

  [[nodiscard]] bool await_ready() const;
  void await_suspend(std::coroutine_handle<> waiter);
  void await_resume();

 private:
  Operation& operation_;
  std::shared_ptr<ErrandState> state_;
};

}  // namespace gtopk::engine
