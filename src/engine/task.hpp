// Engine: the coroutine type of every collective. It is lazy and single-threaded, and resumes its
// awaiter when it ends. It knows no transport; group_view.hpp has what a coroutine may wait for.
#pragma once

#include <array>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <utility>

namespace gtopk::engine {

template <class T = void>
class Task;

namespace detail {

/// Memory of finished coroutine frames, kept per thread for reuse: a collective's frames have the
/// same few sizes every time. Memory that was needed only for many simultaneous operations is freed
/// with them.
class FramePool {
 public:
  /// The most frames of one size that are kept.
  static constexpr std::uint32_t kKept = 256;

  static void* take(std::size_t bytes) {
    FramePool& pool = of_this_thread();
    const std::size_t size_class = class_of(bytes);
    if (size_class >= kClasses) {
      return ::operator new(bytes);
    }
    Frames& frames = pool.free_[size_class];
    if (frames.first == nullptr) {
      return ::operator new((size_class + 1) * kGrain);
    }
    --frames.count;
    return std::exchange(frames.first, frames.first->next);
  }
  static void give_back(void* memory, std::size_t bytes) noexcept {
    const std::size_t size_class = class_of(bytes);
    if (size_class >= kClasses) {
      ::operator delete(memory);
      return;
    }
    Frames& frames = of_this_thread().free_[size_class];
    if (frames.count == kKept) {
      ::operator delete(memory);
      return;
    }
    ++frames.count;
    frames.first = std::construct_at(static_cast<Frame*>(memory), Frame{frames.first});
  }

  FramePool() = default;
  FramePool(const FramePool&) = delete;
  FramePool& operator=(const FramePool&) = delete;
  FramePool(FramePool&&) = delete;
  FramePool& operator=(FramePool&&) = delete;
  ~FramePool() {
    for (Frames& frames : free_) {
      while (frames.first != nullptr) {
        ::operator delete(std::exchange(frames.first, frames.first->next));
      }
    }
  }

 private:
  struct Frame {
    Frame* next;
  };
  struct Frames {
    Frame* first = nullptr;
    std::uint32_t count = 0;
  };
  static constexpr std::size_t kGrain = 64;
  static constexpr std::size_t kClasses = 128;  // up to 8 KiB
  static std::size_t class_of(std::size_t bytes) { return (bytes - 1) / kGrain; }
  static FramePool& of_this_thread() {
    static thread_local FramePool pool;
    return pool;
  }
  std::array<Frames, kClasses> free_{};
};

struct PromiseBase {
#if !defined(__SANITIZE_ADDRESS__)  // ASan detects use of a finished frame only if its
                                    // memory is freed
  static void* operator new(std::size_t bytes) { return FramePool::take(bytes); }
  static void operator delete(void* frame, std::size_t bytes) noexcept {
    FramePool::give_back(frame, bytes);
  }
#endif

  std::coroutine_handle<> continuation;
  std::exception_ptr exception;

  struct FinalAwaiter {
    [[nodiscard]] bool await_ready() const noexcept { return false; }
    template <class Promise>
    std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> ended) const noexcept {
      const std::coroutine_handle<> continuation = ended.promise().continuation;
      return continuation ? continuation : std::noop_coroutine();
    }
    void await_resume() const noexcept {}
  };

  std::suspend_always initial_suspend() noexcept { return {}; }
  FinalAwaiter final_suspend() noexcept { return {}; }
  void unhandled_exception() noexcept { exception = std::current_exception(); }
};

template <class T>
struct Promise : PromiseBase {
  std::optional<T> value;
  Task<T> get_return_object();
  void return_value(T result) { value.emplace(std::move(result)); }
  T take() {
    if (exception) {
      std::rethrow_exception(exception);
    }
    return std::move(*value);
  }
};

template <>
struct Promise<void> : PromiseBase {
  Task<void> get_return_object();
  void return_void() noexcept {}
  void take() const {
    if (exception) {
      std::rethrow_exception(exception);
    }
  }
};

}  // namespace detail

/// Owns a coroutine that starts when it is awaited (or by start(), at the root).
template <class T>
class [[nodiscard]] Task {
 public:
  using promise_type = detail::Promise<T>;
  using Handle = std::coroutine_handle<promise_type>;

  Task() = default;
  explicit Task(Handle handle) : handle_(handle) {}
  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, {})) {}
  Task& operator=(Task&& other) noexcept {
    if (this != &other) {
      if (handle_) {
        handle_.destroy();
      }
      handle_ = std::exchange(other.handle_, {});
    }
    return *this;
  }
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;
  ~Task() {
    if (handle_) {
      handle_.destroy();
    }
  }

  // These three are called by the root.
  void start() { handle_.resume(); }
  [[nodiscard]] bool started() const { return static_cast<bool>(handle_); }
  [[nodiscard]] bool done() const { return handle_.done(); }
  T take() { return handle_.promise().take(); }

  // Awaiting a task runs it.
  [[nodiscard]] bool await_ready() const noexcept { return false; }
  std::coroutine_handle<> await_suspend(std::coroutine_handle<> awaiter) noexcept {
    handle_.promise().continuation = awaiter;
    return handle_;
  }
  T await_resume() { return take(); }

 private:
  Handle handle_;
};

namespace detail {
template <class T>
Task<T> Promise<T>::get_return_object() {
  return Task<T>{std::coroutine_handle<Promise<T>>::from_promise(*this)};
}
inline Task<void> Promise<void>::get_return_object() {
  return Task<void>{std::coroutine_handle<Promise<void>>::from_promise(*this)};
}
}  // namespace detail

}  // namespace gtopk::engine
