// What happens to a frame between two ports: it is lost, or it waits. This is pure: it has no
// sockets, and the time is an argument.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <vector>

namespace netlab {

using Time = std::chrono::nanoseconds;  // since any fixed moment

/// What happens to a frame, one way. loss: the probability, 0 to 1, of each frame, independent of
/// all others. jitter: delays are uniform in delay ± jitter. reorder: whether a frame may overtake
/// frames before it; otherwise it waits for them. limit_bytes: the most bytes that may wait for one
/// port.
struct Impairment {
  Time delay{};
  Time jitter{};
  double loss = 0;
  bool reorder = false;
  std::uint64_t seed = 1;
  std::size_t limit_bytes = std::size_t{64} << 20;
};

/// A frame that waits. `order` is the order of arrival, and decides between equal times.
struct Frame {
  Time due{};
  std::uint64_t order = 0;
  std::vector<std::byte> bytes;
};

enum class Fate : std::uint8_t { kWaits, kLost, kOverflowed };

/// The frames on their way to one port.
class DelayLine {
 public:
  /// `sources` is the number of ports from which frames may come. Losses and jitter between two
  /// ports depend only on the seed and on the number of earlier frames between the two.
  DelayLine(const Impairment& impairment, std::size_t port, std::size_t sources);

  /// Adds a frame that came from `source` at that time.
  [[nodiscard]] Fate push(std::size_t source, Time arrival, std::vector<std::byte> bytes);

  /// Adds a frame that is neither delayed nor lost.
  void pass(Time arrival, std::vector<std::byte> bytes);

  [[nodiscard]] std::optional<Time> next_due() const;

  /// Returns the frame whose turn it is, if there is one by now.
  [[nodiscard]] std::optional<Frame> pop(Time now);

 private:
  struct Source {
    std::mt19937_64 random;
    Time last_due{};
  };

  void insert(Time due, std::vector<std::byte> bytes);

  Impairment impairment_;
  std::vector<Source> sources_;
  std::vector<Frame> heap_;
  std::size_t waiting_bytes_ = 0;
  std::uint64_t pushed_ = 0;
};

}  // namespace netlab
