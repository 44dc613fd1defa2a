#include "src/gtopk/wire/rice.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "src/gtopk/wire/codec.hpp"
#include "src/gtopk/wire/rice_rules.hpp"

namespace gtopk::sparse::rice {
namespace {

static_assert(std::endian::native == std::endian::little, "bits fill bytes from the lowest");

constexpr std::size_t kWord = sizeof(std::uint64_t);

/// Writes a bit stream in whole words: up to 8 bytes beyond the last bit are overwritten.
class Writer {
 public:
  explicit Writer(std::byte* out) : out_(out) {}

  /// Writes the `bits` low bits of `value`; requires `bits` < 64.
  void put(std::uint64_t value, std::uint32_t bits) {
    word_ |= value << fill_;
    fill_ += bits;
    if (fill_ >= kWordBits) {
      flush();
      fill_ -= kWordBits;
      word_ = fill_ == 0 ? 0 : value >> (bits - fill_);
    }
  }

  /// Writes this many zeros, then a one.
  void unary(std::uint64_t zeros) {
    std::uint64_t at = fill_ + zeros;
    for (; at >= kWordBits; at -= kWordBits) {
      flush();
      word_ = 0;
    }
    word_ |= std::uint64_t{1} << at;
    fill_ = static_cast<std::uint32_t>(at) + 1;
    if (fill_ == kWordBits) {
      flush();
      word_ = 0;
      fill_ = 0;
    }
  }

  /// Flushes; returns the stream's length in bytes.
  std::size_t end() {
    std::memcpy(out_ + words_ * kWord, &word_, kWord);
    return words_ * kWord + bytes_of(fill_);
  }

 private:
  void flush() {
    std::memcpy(out_ + words_ * kWord, &word_, kWord);
    ++words_;
  }

  std::byte* out_;
  std::size_t words_ = 0;
  std::uint64_t word_ = 0;
  std::uint32_t fill_ = 0;
};

/// Loads up to 8 bytes from `at`, with zeros beyond the end.
std::uint64_t load(std::span<const std::byte> bytes, std::size_t at) {
  std::uint64_t word = 0;
  if (at + kWord <= bytes.size()) {
    std::memcpy(&word, bytes.data() + at, kWord);
  } else if (at < bytes.size()) {
    std::memcpy(&word, bytes.data() + at, bytes.size() - at);
  }
  return word;
}

/// Returns up to 56 bits from bit `at`; `bytes` must extend 8 bytes past the start of the byte
/// holding `at`.
std::uint64_t take_near(std::span<const std::byte> bytes, std::uint64_t at, std::uint64_t mask) {
  std::uint64_t word = 0;
  std::memcpy(&word, bytes.data() + at / 8, kWord);
  return (word >> at % 8) & mask;
}

/// Returns up to 63 bits from bit `at`.
std::uint64_t take(std::span<const std::byte> bytes, std::uint64_t at, std::uint64_t mask) {
  const auto byte = static_cast<std::size_t>(at / 8);
  const auto shift = static_cast<std::uint32_t>(at % 8);
  std::uint64_t value = load(bytes, byte) >> shift;
  if (shift != 0) {
    value |= load(bytes, byte + kWord) << (kWordBits - shift);
  }
  return value & mask;
}

/// Reads the ones of a bit stream, with the number of zeros before each.
class Ones {
 public:
  explicit Ones(std::span<const std::byte> bits) : bits_(bits), word_(load(bits, 0)) {}

  /// Returns false at the end of the stream.
  bool next(std::uint64_t& zeros) {
    while (word_ == 0) {
      byte_ += kWord;
      if (byte_ >= bits_.size()) {
        return false;
      }
      word_ = load(bits_, byte_);
    }
    const std::uint64_t one =
        std::uint64_t{byte_} * 8 + static_cast<std::uint64_t>(std::countr_zero(word_));
    word_ &= word_ - 1;
    zeros = one - behind_;
    behind_ = one + 1;
    return true;
  }

  /// The position after the last one bit.
  [[nodiscard]] std::uint64_t behind() const { return behind_; }

 private:
  std::span<const std::byte> bits_;
  std::uint64_t word_;
  std::size_t byte_ = 0;
  std::uint64_t behind_ = 0;
};

[[noreturn]] void damaged(const char* what) {
  throw Damaged(fmt::format("not a valid index code: {}", what));
}

/// Whether the stream ends in the byte that holds its last bit, and the unused bits are zeros.
bool ends_in(std::span<const std::byte> stream, std::uint64_t bits) {
  if (stream.size() != bytes_of(bits)) {
    return false;
  }
  const auto used = static_cast<std::uint32_t>(bits % 8);
  return used == 0 || (std::to_integer<unsigned>(stream.back()) >> used) == 0;
}

}  // namespace

std::size_t capacity_for(std::size_t count, std::uint64_t d) {
  if (count == 0) {
    return kWord;
  }
  // There are at most n log2(d / n) low bits over all blocks, and 3 n high bits.
  const auto bits = static_cast<std::uint64_t>(std::bit_width(d / count)) + 4;
  return blocks_of(count) + bytes_of(bits * count) + 3 * kWord;
}

template <class Index>
std::size_t encode(const Index* indices, std::size_t count, std::byte* out) {
  const std::size_t blocks = blocks_of(count);
  // This is the lowest index that may come next.
  std::uint64_t next = 0;
  Writer low(out + blocks);
  for (std::size_t block = 0; block < blocks; ++block) {
    const std::size_t begin = block * kBlock;
    const std::size_t end = std::min(begin + kBlock, count);
    const std::uint32_t bits = parameter(indices[end - 1] + std::uint64_t{1} - next, end - begin);
    out[block] = static_cast<std::byte>(bits);
    const std::uint64_t mask = low_mask(bits);
    for (std::size_t i = begin; i < end; ++i) {
      low.put((indices[i] - next) & mask, bits);
      next = indices[i] + std::uint64_t{1};
    }
  }
  const std::size_t front = blocks + low.end();
  Writer high(out + front);
  next = 0;
  for (std::size_t block = 0; block < blocks; ++block) {
    const auto bits = std::to_integer<std::uint32_t>(out[block]);
    const std::size_t end = std::min((block + 1) * kBlock, count);
    for (std::size_t i = block * kBlock; i < end; ++i) {
      high.unary((indices[i] - next) >> bits);
      next = indices[i] + std::uint64_t{1};
    }
  }
  return front + high.end();
}

template <class Index>
void decode(std::span<const std::byte> code, Index* indices, std::size_t count, std::uint64_t d) {
  const std::size_t blocks = blocks_of(count);
  if (code.size() < blocks) {
    damaged("too short");
  }
  const std::span<const std::byte> parameters = code.first(blocks);
  std::uint64_t low_bits = 0;
  for (std::size_t block = 0; block < blocks; ++block) {
    const auto bits = std::to_integer<std::uint32_t>(parameters[block]);
    if (bits >= kWordBits) {
      damaged("more than 63 low bits");
    }
    low_bits += bits * std::uint64_t{std::min(kBlock, count - block * kBlock)};
  }
  if (bytes_of(low_bits) > code.size() - blocks) {
    damaged("too short");
  }
  const std::span<const std::byte> streams = code.subspan(blocks);
  if (!ends_in(streams.first(bytes_of(low_bits)), low_bits)) {
    damaged("bits after the last low bits");
  }

  Ones ones(streams.subspan(bytes_of(low_bits)));
  std::uint64_t left = d;  // indices that may still come: the next one is at least d - left
  std::uint64_t at = 0;    // position in the low bits
  std::uint64_t zeros = 0;
  for (std::size_t block = 0; block < blocks; ++block) {
    const auto bits = std::to_integer<std::uint32_t>(parameters[block]);
    const std::uint64_t mask = low_mask(bits);
    const std::size_t begin = block * kBlock;
    const std::size_t end = std::min(begin + kBlock, count);
    const std::uint64_t block_left = left;
    const auto decode_block = [&](auto take_low) {
      for (std::size_t i = begin; i < end; ++i, at += bits) {
        if (!ones.next(zeros)) {
          damaged("too few indices");
        }
        if (zeros > left >> bits) {  // the shift below would lose bits
          damaged("an index beyond the end");
        }
        const std::uint64_t gap = (zeros << bits) | take_low(streams, at, mask);
        if (gap >= left) {
          damaged("an index beyond the end");
        }
        indices[i] = static_cast<Index>(d - left + gap);
        left -= gap + 1;
      }
    };
    if (bits <= kWordBits - 8 && (at + (end - begin) * bits) / 8 + kWord <= streams.size()) {
      decode_block([](auto... where) { return take_near(where...); });
    } else {
      decode_block([](auto... where) { return take(where...); });
    }
    if (bits != parameter(block_left - left, end - begin)) {
      damaged("a different number of low bits than the encoder chooses");
    }
  }
  if (ones.next(zeros)) {
    damaged("too many indices");
  }
  if (streams.size() - bytes_of(low_bits) != bytes_of(ones.behind())) {
    damaged("bytes after the last index");
  }
}

template std::size_t encode(const std::uint32_t*, std::size_t, std::byte*);
template std::size_t encode(const std::uint64_t*, std::size_t, std::byte*);
template void decode(std::span<const std::byte>, std::uint32_t*, std::size_t, std::uint64_t);
template void decode(std::span<const std::byte>, std::uint64_t*, std::size_t, std::uint64_t);

}  // namespace gtopk::sparse::rice
