// Engine tests: a global operator new that counts while switched on. Linking the .cpp beside this
// file replaces operator new.
#pragma once

#include <cstddef>

namespace gtopk::support {

[[nodiscard]] std::size_t allocations();
void reset_allocations();

/// Switches counting on or off for a scope.
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
