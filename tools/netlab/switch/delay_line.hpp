// What happens to a frame between two ports: it is lost, or it waits.
// Pure: no sockets, and the time is an argument.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <vector>

namespace netlab {

using Time = std::chrono::nanoseconds;  // since any fixed moment

/// What a frame meets on its way, one way. loss: the probability, 0 to 1, of each frame,
/// independent of all others. jitter: delays are uniform in delay ± jitter. reorder: a frame may
/// overtake those before it; otherwise it waits for them. limit_bytes: what may wait for one port.
struct Impairment {
  Time delay{};
  Time jitter{};
  double loss = 0;
  bool reorder = false;
  std::uint64_t seed = 1;
  std::size_t limit_bytes = std::size_t{64} << 20;
};

/// A frame that waits. `order` is that of arrival, and decides between equal times.
struct Frame {
  Time due{};
  std::uint64_t order = 0;
  std::vector<std::byte> bytes;
};

enum class Fate : std::uint8_t { kWaits, kLost, kOverflowed };

/// The frames on their way to one port.
class DelayLine {
 public:
  /// sources: the number of ports that frames may come from. Losses and jitter between two ports
  /// depend on the seed and on how many frames went before between the two, and on nothing else.
  DelayLine(const Impairment& impairment, std::size_t port, std::size_t sources);

  /// A frame that came from `source` at that time.
  [[nodiscard]] Fate push(std::size_t source, Time arrival, std::vector<std::byte> bytes);

  /// One that is neither delayed nor lost.
  void pass(Time arrival, std::vector<std::byte> bytes);

  [[nodiscard]] std::optional<Time> next_due() const;

  /// The frame whose turn it is, if there is one by now.
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
