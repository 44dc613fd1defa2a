// Transport, inproc: a set of streams that is emptied and filled again for every event drawn, which
// is most of what the scheduler does. Emptying costs nothing, and after the first fills nothing is
// allocated.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace gtopk::transport::inproc {

/// What an event belongs to: its two ranks, a connection between them where that matters, and a tag
/// where streams of one tag are meant.
struct Stream {
  std::uint32_t source = 0;
  std::uint32_t destination = 0;
  std::uint32_t connection = 0;
  std::uint64_t tag = 0;
  bool operator==(const Stream&) const = default;
};

class Seen {
 public:
  /// Empties the set and makes space for `streams`.
  void begin(std::size_t streams) {
    const std::size_t needed = std::bit_ceil(2 * streams + 1);
    if (slots_.size() < needed) {
      slots_.assign(needed, {});
    }
    ++round_;
  }

  /// Whether `stream` was not in the set before this.
  bool add(const Stream& stream) {
    std::size_t at = hash(stream);
    for (;; ++at) {
      Slot& slot = slots_[at & (slots_.size() - 1)];
      if (slot.round != round_) {
        slot = {round_, stream};
        return true;
      }
      if (slot.stream == stream) {
        return false;
      }
    }
  }

 private:
  struct Slot {
    std::uint64_t round = 0;  ///< it counts only in the round in which it was filled
    Stream stream;
  };

  static std::size_t hash(const Stream& stream) {
    constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15;  // 2^64 / the golden ratio
    const std::uint64_t ranks = (std::uint64_t{stream.source} << 32U) | stream.destination;
    return static_cast<std::size_t>((((ranks + stream.connection) * kOdd) ^ stream.tag) * kOdd >>
                                    32U);
  }

  std::vector<Slot> slots_;
  std::uint64_t round_ = 0;
};

}  // namespace gtopk::transport::inproc
