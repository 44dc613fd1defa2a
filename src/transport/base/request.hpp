// Transport, base: one message in flight. It lives in the slab of the operation that posted it and
// must not move until it is complete; its buffer must live as long.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/transport/base/status.hpp"
#include "src/transport/base/tag.hpp"

namespace gtopk::transport {

using PeerId = std::uint32_t;

/// Stands for any free connection to the peer. Messages sent this way may overtake each other, so
/// messages with equal tags must not be in flight at the same time.
inline constexpr std::uint32_t kAnyConnection = ~std::uint32_t{0};

class Request {
 public:
  /// Called once, on the engine thread, inside the transport call that ends the message: progress,
  /// or send, recv, cancel, give_up, wait or close. It must not call the transport.
  using Callback = void (*)(Request&);

  /// The size of the storage for the network library's own data per request (UCX 1.22 asks for 280
  /// bytes).
  static constexpr std::size_t kStorage = 512;

  Request() = default;
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;
  Request(Request&&) = delete;
  Request& operator=(Request&&) = delete;
  ~Request() = default;

  void prepare(Callback callback, void* context) {
    callback_ = callback;
    context_ = context;
    status_ = Status::kInProgress;
    length_ = 0;
  }

  /// Called by the transport, exactly once per prepare.
  void complete(Status status, std::size_t length) {
    status_ = status;
    length_ = length;
    callback_(*this);
  }

  [[nodiscard]] bool pending() const { return status_ == Status::kInProgress; }
  [[nodiscard]] Status status() const { return status_; }
  /// The number of bytes received or sent; for kTruncated, the sender's true length, if known.
  [[nodiscard]] std::size_t length() const { return length_; }
  [[nodiscard]] void* context() const { return context_; }

  // The following is the transport's data about a pending request.
  PeerId peer = 0;
  Tag tag = 0;
  std::size_t bytes = 0;  ///< the size of a send's buffer
  bool is_receive = false;
  bool connects = true;  ///< a receive connects its endpoint; see Transport::recv
  bool urgent = false;   ///< a send that may use the reserve for a connection
  /// The connection to the peer that a send uses, modulo their number, or kAnyConnection.
  std::uint32_t connection = 0;
  std::uint32_t taken = kAnyConnection;  ///< the connection that such a send has taken
  Request* previous = nullptr;           ///< in the endpoint's list of pending requests
  Request* next = nullptr;
  void* transport = nullptr;
  alignas(64) std::byte storage[kStorage];

 private:
  Callback callback_ = nullptr;
  void* context_ = nullptr;
  Status status_ = Status::kOk;
  std::size_t length_ = 0;
};

}  // namespace gtopk::transport
