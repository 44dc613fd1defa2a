// Test support of the transports: what a transport provides to be run through the suite: some ends
// in one thread, how to move what is in flight between them, and a row in networks.cpp.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "src/transport/base/transport.hpp"
#include "tests/transport/suite/message.hpp"

namespace gtopk::test {

/// What has not happened by then never will.
inline constexpr std::chrono::seconds kWatchdog{30};

class Network {
 public:
  Network() = default;
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;
  Network(Network&&) = delete;
  Network& operator=(Network&&) = delete;
  virtual ~Network() = default;

  [[nodiscard]] virtual std::size_t size() const = 0;
  [[nodiscard]] virtual Transport& operator[](std::size_t end) = 0;

  /// Moves what can move now; false if nothing did.
  virtual bool move() = 0;
  /// After nothing moved: false if nothing ever will on its own.
  virtual bool more_may_come() = 0;
  /// The clock by which wait() measures.
  [[nodiscard]] virtual transport::TimePoint now() const = 0;
  /// Closes one end while the others keep moving, as their engines do.
  virtual void close(std::size_t end) = 0;

  /// Gives every end every other end's address.
  void introduce() {
    ids.resize(size());
    for (std::size_t at = 0; at < size(); ++at) {
      // Peer ids differ from positions on purpose.
      ids[at].resize(size());
      for (std::size_t i = 1; i <= size(); ++i) {
        const std::size_t of = (at + i) % size();
        ids[at][of] = introduce(at, of);
      }
    }
  }
  /// Tells `at` how to reach `of`; returns its id there.
  PeerId introduce(std::size_t at, std::size_t of) {
    const PeerId peer = (*this)[at].add_peer((*this)[of].card());
    (*this)[at].set_address(peer, (*this)[of].address());
    return peer;
  }

  /// Moves until `done()`; false if that never happens.
  template <typename Done>
  [[nodiscard]] bool until(const Done& done) {
    const auto deadline = std::chrono::steady_clock::now() + kWatchdog;
    while (!done()) {
      if ((!move() && !more_may_come()) || std::chrono::steady_clock::now() > deadline) {
        return done();
      }
    }
    return true;
  }

  /// Waits until all that `from` has sent to `to` so far has arrived, received or not, by sending a
  /// notice after it.
  [[nodiscard]] bool arrived(std::size_t from, std::size_t to) {
    constexpr Tag kBehind = transport::control_tag(~std::uint64_t{0});
    Message out("x");
    Message in(std::size_t{1});
    in.recv((*this)[to], ids[to][from], kBehind);
    out.send((*this)[from], ids[from][to], kBehind);
    return until([&] { return in.done() && out.done(); }) && in.bytes == out.bytes;
  }

  /// ids[i][j] is i's id of j.
  std::vector<std::vector<PeerId>> ids;
};

/// A row of the suite.
struct NetworkKind {
  std::string name;
  /// `seed` draws the order of events where the kernel does not decide it.
  std::function<std::unique_ptr<Network>(std::size_t size, std::uint64_t seed)> make;
  /// How many seeds are worth running where chance plays a part.
  std::uint64_t seeds = 1;
  /// An end notices when another end in the same process closes.
  bool tells_of_ends = true;
  /// A short send ends, and its message arrives, before it is received.
  bool sends_ahead = true;
  /// Cards are shorter than addresses, and the address book is asked for addresses.
  bool asks_for_addresses = false;
};

/// Every transport.
[[nodiscard]] const std::vector<NetworkKind>& networks();
/// Those that have `trait`.
[[nodiscard]] std::vector<NetworkKind> networks_that(bool NetworkKind::*trait);

}  // namespace gtopk::test
