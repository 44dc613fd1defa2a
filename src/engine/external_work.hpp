// Engine: work that is done outside the engine, by a device for example. It begins at once, and is
// awaited like a message. Whoever does it calls back, on any thread.
//
//   ExternalWork finding(group, [&](ExternalWork::Done done) { device.find(std::move(done)); });
//   ... other messages ...
//   co_await finding;
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
class [[nodiscard]] ExternalWork {
 public:
  /// To be called once: null, or why the work was not done. Later than the engine's end it does
  /// nothing.
  using Done = std::function<void(std::exception_ptr)>;

  /// `begin` must not block, and may call what it is given at once. Throws what it throws, or the
  /// cause if the operation has failed.
  ExternalWork(GroupView& group, const std::function<void(Done)>& begin);
  ExternalWork(const ExternalWork&) = delete;
  ExternalWork& operator=(const ExternalWork&) = delete;
  ExternalWork(ExternalWork&&) = delete;
  ExternalWork& operator=(ExternalWork&&) = delete;
  ~ExternalWork();

  [[nodiscard]] bool await_ready() const;
  void await_suspend(std::coroutine_handle<> waiter);
  void await_resume();

 private:
  Operation& operation_;
  std::shared_ptr<ExternalWorkState> state_;
};

}  // namespace gtopk::engine
