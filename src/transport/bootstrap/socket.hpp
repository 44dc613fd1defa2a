// Bootstrap: the few socket calls that the rendezvous needs, with owned descriptors and deadlines.
// It knows neither keys nor frames.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "src/transport/base/clock.hpp"

namespace gtopk::bootstrap {

using transport::Duration;
using transport::TimePoint;

/// An owned file descriptor, closed by the destructor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor();

  [[nodiscard]] int get() const { return number_; }
  explicit operator bool() const { return number_ >= 0; }

 private:
  int number_ = -1;
};

/// The host and port at which a rendezvous listens.
struct Endpoint {
  std::string host;
  std::uint16_t port = 0;
};

[[nodiscard]] std::string to_string(const Endpoint& endpoint);
/// Endpoints as text: "10.0.0.1:29400 or [fd00::1]:29400".
[[nodiscard]] std::string to_string(std::span<const Endpoint> ways);

/// A duration as text: "30 s", "0.25 s".
[[nodiscard]] std::string describe(Duration duration);

/// Returns a listening, non-blocking socket. An empty host means every interface; port 0 lets the
/// system choose. Throws Error{kBootstrap}.
[[nodiscard]] Descriptor listen_on(const Endpoint& endpoint);
[[nodiscard]] std::uint16_t local_port(const Descriptor& socket);
/// The peer's numeric address; "" if the socket is not connected.
[[nodiscard]] std::string peer_address(const Descriptor& socket);

/// Why a connection was refused.
struct Refusal {
  std::string reason;
  bool final = false;  ///< retrying cannot help: the wrong server answers there
};
using Greeting = std::function<std::optional<Refusal>(const Descriptor& socket, TimePoint end)>;

/// Connects to the first address of a server that answers, in their order, and retries while there
/// is no listener yet. An address that does not answer at all delays the others by one second at
/// first. `greet` is called with each connection; if it refuses, the next address is tried. The
/// socket is non-blocking. Throws Error{kBootstrap} with the result of each address. It throws at
/// once if one refusal was final and no other address worked.
[[nodiscard]] Descriptor connect_to(std::span<const Endpoint> ways, Duration at_most,
                                    const Greeting& greet = {});
[[nodiscard]] inline Descriptor connect_to(const Endpoint& endpoint, Duration at_most) {
  return connect_to(std::span(&endpoint, 1), at_most);
}

enum class Transfer : std::uint8_t { kDone, kTimedOut, kClosed };

/// Sends all of `bytes`, or returns why it could not.
[[nodiscard]] Transfer send_all(const Descriptor& socket, std::string_view bytes,
                                TimePoint deadline);
/// Receives exactly `bytes` bytes into `into`, or returns why it could not.
[[nodiscard]] Transfer receive_all(const Descriptor& socket, char* into, std::size_t bytes,
                                   TimePoint deadline);

}  // namespace gtopk::bootstrap
