// Test support: how an operation ended, and whether the test has looked. An unexamined ending may
// be anything, so it fails the test (Endings). It knows no transport.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gtopk/error.hpp"

namespace gtopk::support {

/// The error that an operation ended with, or none: an optional that remembers having been read
/// after the end.
class Cause {
 public:
  [[nodiscard]] bool has_value() const { return read().has_value(); }
  explicit operator bool() const { return has_value(); }
  const Error* operator->() const { return &read().value(); }
  const Error& operator*() const { return read().value(); }

 private:
  friend class Ending;
  [[nodiscard]] const std::optional<Error>& read() const {
    examined_ = examined_ || final_;
    return error_;
  }

  std::optional<Error> error_;
  bool final_ = false;
  mutable bool examined_ = false;
};

/// How an operation ended on one rank.
class Ending {
 public:
  bool ended = false;
  Cause error;

  [[nodiscard]] bool good() const { return ended && !error; }
  /// The error's text, "not ended" or "ok".
  [[nodiscard]] std::string text() const;

  /// The test does not care how it ended; `why` is for the reader.
  void ignore(std::string_view why) const;
  /// Whether the test has looked at it after the end.
  [[nodiscard]] bool examined() const { return error.examined_; }

  /// Call once; throws std::logic_error the second time.
  void end(std::optional<Error> cause);

 private:
  friend class Endings;
  /// text(), without counting as examined.
  [[nodiscard]] std::string peek() const;
};
using SharedEnding = std::shared_ptr<const Ending>;

/// The endings of a test's operations. Its owner calls expect_examined() at the end.
class Endings {
 public:
  /// Registers an operation that has just been submitted; the caller calls end() on the result.
  [[nodiscard]] std::shared_ptr<Ending> add(std::uint32_t rank, const std::string& operation);
  /// Endings of `rank` need not be examined any more: it is dead.
  void forget(std::uint32_t rank);
  /// How many endings are unexamined, and the first of them; empty if none is.
  [[nodiscard]] std::string unexamined() const;
  /// Fails the test if an ending is unexamined, unless it has failed already.
  void expect_examined() const;

 private:
  struct Entry {
    std::uint32_t rank;
    std::string operation;
    SharedEnding ending;
  };
  std::vector<Entry> entries_;
};

}  // namespace gtopk::support
