// Engine: work that is done outside the engine, for example by a device. It begins at once and is
// awaited like a message. Its worker may call back on any thread.
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

/// Awaiting ends when the work is done, and rethrows its error, or when the operation fails. In
/// either case the operation, and so the caller's memory, lives until the work is done. Only one
/// object may be awaited at a time.
class [[nodiscard]] ExternalWork {
 public:
  /// Must be called once, with null or with the reason why the work was not done. It does nothing
  /// after the engine has ended.
  using Done = std::function<void(std::exception_ptr)>;

  /// Calls `begin`, which must not block and may call its argument at once. Rethrows its
  /// exceptions, or throws the cause if the operation has failed.
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
