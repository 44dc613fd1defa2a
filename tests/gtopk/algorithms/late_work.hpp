// Tests, algorithms: what a device was asked for and has not done yet. It does a piece
// of it when the test says so.
#pragma once

#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <utility>

namespace gtopk::sparse::testing {

class LateWork {
 public:
  /// Does one piece of what it was asked for; false if there is none.
  bool work() {
    if (asked_.empty()) {
      return false;
    }
    const std::function<void()> work = std::move(asked_.front());
    asked_.pop_front();
    work();
    return true;
  }
  [[nodiscard]] std::size_t asked() const { return asked_.size(); }
  /// From now on everything fails so.
  void break_with(std::exception_ptr error) { broken_ = std::move(error); }

 protected:
  /// done: as of AccDevice.
  void ask(std::function<void(std::exception_ptr)> done, std::function<void()> work) {
    asked_.push_back([this, done = std::move(done), work = std::move(work)] {
      if (broken_) {
        return done(broken_);
      }
      work();
      done(nullptr);
    });
  }

 private:
  std::deque<std::function<void()>> asked_;
  std::exception_ptr broken_;
};

}  // namespace gtopk::sparse::testing
