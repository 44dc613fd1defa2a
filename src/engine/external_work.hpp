// Engine: work that is done outside the engine, for example by a device. It begins at once, and is
// awaited like a message. Its worker calls back, on any thread.
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

/// Awaiting ends when the work is done, and rethrows its error; or when the operation fails. In any
/// case the operation, and so the caller's memory, lives until the work is done. Only one at a time
/// may be awaited.
class [[nodiscard]] ExternalWork {
 public:
  /// To be called once, with null or with the reason why the work was not done. After the engine's
  /// end it does nothing.
  using Done = std::function<void(std::exception_ptr)>;

  /// `begin` must not block, and may call its argument at once. Rethrows its exceptions, or throws
  /// the cause if the operation has failed.
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
