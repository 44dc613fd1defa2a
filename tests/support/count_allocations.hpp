// Test support: how often this program has allocated. Not in the library: compiling the .cpp beside
// this file into a program replaces its global operator new.
#pragma once

#include <cstddef>

namespace gtopk::support {

/// Since the program began, on all threads, except where counting was switched off.
[[nodiscard]] std::size_t allocations();

/// Switches counting on or off for a scope, on this thread.
class Counting {
 public:
  explicit Counting(bool on);
  Counting(const Counting&) = delete;
  Counting& operator=(const Counting&) = delete;
  Counting(Counting&&) = delete;
  Counting& operator=(Counting&&) = delete;
  ~Counting();

 private:
  bool before_;
};

}  // namespace gtopk::support
