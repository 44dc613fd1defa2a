// Test support: how an operation ended, and whether the test has looked. An ending that nobody
// looks at may be anything, so it fails the test (Endings). It knows no transport.
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

  /// The test does not care: `why` is for the reader.
  void ignore(std::string_view why) const;
  /// Somebody has asked, since the end, how it was.
  [[nodiscard]] bool examined() const { return error.examined_; }

  /// Once; throws std::logic_error the second time.
  void end(std::optional<Error> cause);

 private:
  friend class Endings;
  /// text(), which this does not count as examined.
  [[nodiscard]] std::string peek() const;
};
using SharedEnding = std::shared_ptr<const Ending>;

/// The endings of a test's operations. Whoever owns them calls expect_examined() at the end.
class Endings {
 public:
  /// An operation that has just been submitted; the caller ends what it gets.
  [[nodiscard]] std::shared_ptr<Ending> add(std::uint32_t rank, const std::string& operation);
  /// Nothing is expected any more of operations of `rank`: it is dead.
  void forget(std::uint32_t rank);
  /// What a test has dropped unseen: how many, and the first; empty when there are none.
  [[nodiscard]] std::string unexamined() const;
  /// Fails the test if it dropped one, unless it has failed already.
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
