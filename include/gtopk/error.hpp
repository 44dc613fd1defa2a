/// @file
/// The one exception type, with a kind that a caller can act on. It does not depend on the
/// transport or on torch.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace gtopk {

/// What kind of failure it was, and so what a caller can do.
enum class ErrorKind : std::uint8_t {
  kInvalidArgument,  ///< found locally, before anything was sent; the group stays usable
  kMismatch,         ///< ranks called with different arguments; the group stays usable
  kTimeout,          ///< the operation's deadline passed
  kPeerFailed,       ///< a rank died or does not answer; the group has failed
  kAborted,          ///< this process or the group was shut down
  kTransport,        ///< the network library failed
  kBootstrap,        ///< ranks could not find each other
  kUnsupported,      ///< not implemented; the message names it
};

/// The kind in words, such as "peer failed".
[[nodiscard]] constexpr std::string_view to_string(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalidArgument:
      return "invalid argument";
    case ErrorKind::kMismatch:
      return "mismatch";
    case ErrorKind::kTimeout:
      return "timeout";
    case ErrorKind::kPeerFailed:
      return "peer failed";
    case ErrorKind::kAborted:
      return "aborted";
    case ErrorKind::kTransport:
      return "transport";
    case ErrorKind::kBootstrap:
      return "bootstrap";
    case ErrorKind::kUnsupported:
      return "unsupported";
  }
  return "unknown";
}

/// Says what was expected, what was seen, on which rank, in which operation, and what to do about
/// it.
class Error : public std::runtime_error {
 public:
  /// Makes an error whose what() returns `message`; for `ended_group`, see ended_group().
  Error(ErrorKind kind, const std::string& message, bool ended_group = false)
      : std::runtime_error(message), kind_(kind), ended_group_(ended_group) {}

  /// What kind of failure it was.
  [[nodiscard]] ErrorKind kind() const { return kind_; }
  /// Whether the operation failed because its group did: no later operation of the group can
  /// succeed.
  [[nodiscard]] bool ended_group() const { return ended_group_; }

 private:
  ErrorKind kind_;
  bool ended_group_;
};

}  // namespace gtopk
