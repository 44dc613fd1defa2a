#include "src/gtopk/wire/coded.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "src/gtopk/wire/block_rounding.hpp"
#include "src/gtopk/wire/entropy.hpp"
#include "src/gtopk/wire/four_bits.hpp"
#include "src/gtopk/wire/levels.hpp"
#include "src/gtopk/wire/rice.hpp"
#include "src/gtopk/wire/rounding.hpp"
#include "src/gtopk/wire/value_rules.hpp"
#include "src/numbers/accumulation.hpp"
#include "src/numbers/keep_denormals.hpp"

namespace gtopk::sparse {
namespace {

/// A format in which a message stores values. `Stored` is the type of one value; values lie one
/// after the other. `pack` loses nothing of a value that is already rounded.
struct AsTheyAre {
  static constexpr bool kRounds = false;
  template <class Value>
  using Stored = Value;
  template <class Value>
  static Value pack(Value value) {
    return value;
  }
  template <class Value>
  static Value unpack(Value stored) {
    return stored;
  }
};

/// A format in which values are rounded to a half type.
template <class Half>
struct Rounded16 {
  static constexpr bool kRounds = true;
  template <class Value>
  using Stored = Half;
  template <class Value>
  static Half pack(Value value) {
    return to_half<Half>(value);
  }
  template <class Value>
  static Value unpack(Half stored) {
    return widen(stored);
  }
};

/// Codes each value separately.
template <class Each>
struct OneByOne {
  static constexpr bool kRounds = Each::kRounds;
  static constexpr bool kByBlocks = false;
  static constexpr bool kTies = false;
  template <class Value>
  using Stored = typename Each::template Stored<Value>;

  template <class Value>
  static std::size_t bytes(std::size_t count) {
    return count * sizeof(Stored<Value>);
  }
  template <class Value>
  static void write(const Value* values, std::size_t count, std::byte* out) {
    auto* const stored = reinterpret_cast<Stored<Value>*>(out);
    for (std::size_t i = 0; i < count; ++i) {
      stored[i] = Each::pack(values[i]);
    }
  }
  template <class Value>
  static void read(const std::byte* bytes, std::size_t count, Value* values) {
    const auto* const stored = reinterpret_cast<const Stored<Value>*>(bytes);
    for (std::size_t i = 0; i < count; ++i) {
      values[i] = Each::template unpack<Value>(stored[i]);
    }
  }
  template <class Value, class Index>
  static void round(EntriesOut<Value, Index> list, std::size_t count,
                    Rounding<Value, Index>& rounding) {
    for (std::size_t i = 0; i < count; ++i) {
      rounding.take(i, Each::template unpack<Value>(Each::pack(list.values[i])));
    }
  }
};

/// The multiples to which a block's values are rounded. Values are added one by one; none is zero.
template <class Value>
class Int8Grid {
 public:
  bool take(Value value) {
    const Value magnitude = std::fabs(value);
    if (magnitude <= largest_) {
      return false;
    }
    const bool first = largest_ == 0;
    largest_ = magnitude;
    const int wider = int8_exponent<Value>(magnitude_key(magnitude));
    if (!first && wider == exponent_) {
      return false;
    }
    exponent_ = wider;
    scale_ = Int8Scale<Value>(wider);
    return true;
  }
  [[nodiscard]] Value rounded(Value value) const { return scale_.times(scale_.quotient(value)); }

 private:
  Value largest_ = 0;
  int exponent_ = 0;
  Int8Scale<Value> scale_{0};
};

/// Each value is an integer q from -127 to 127 times 2^e of its block, with the least e for which
/// the block's largest magnitude is at most 127 2^e. A block is 256 entries of the rounded list;
/// the last one may be shorter. An entry rounded to zero belongs to the block that it would have
/// been in.
struct AsInt8 {
  static constexpr bool kRounds = true;
  static constexpr bool kByBlocks = true;
  static constexpr bool kTies = false;
  static constexpr std::size_t kBlock = kInt8Block;
  static constexpr int kMost = kInt8Most;
  using Exponent = std::int16_t;

  static std::size_t blocks_of(std::size_t count) { return (count + kBlock - 1) / kBlock; }

  template <class Value>
  static int exponent_of(Value largest) {
    return int8_exponent<Value>(magnitude_key(largest));
  }
  template <class Value>
  using Scale = Int8Scale<Value>;

  template <class Value>
  static std::size_t bytes(std::size_t count) {
    return blocks_of(count) * sizeof(Exponent) + count;
  }
  template <class Value>
  static void write(const Value* values, std::size_t count, std::byte* out) {
    std::byte* const quotients = out + blocks_of(count) * sizeof(Exponent);
    for (std::size_t begin = 0; begin < count; begin += kBlock) {
      const std::size_t end = std::min(begin + kBlock, count);
      Value largest = 0;
      for (std::size_t i = begin; i < end; ++i) {
        largest = std::max(largest, std::fabs(values[i]));
      }
      const auto e = static_cast<Exponent>(exponent_of(largest));
      std::memcpy(out + begin / kBlock * sizeof e, &e, sizeof e);
      const Scale<Value> scale(e);
      for (std::size_t i = begin; i < end; ++i) {
        quotients[i] = static_cast<std::byte>(static_cast<std::int8_t>(scale.quotient(values[i])));
      }
    }
  }
  template <class Value>
  static void read(const std::byte* bytes, std::size_t count, Value* values) {
    const std::byte* const quotients = bytes + blocks_of(count) * sizeof(Exponent);
    for (std::size_t begin = 0; begin < count; begin += kBlock) {
      const std::size_t end = std::min(begin + kBlock, count);
      Exponent e = 0;
      std::memcpy(&e, bytes + begin / kBlock * sizeof e, sizeof e);
      const Scale<Value> scale(e);
      double largest = 0;
      bool exact = true;
      for (std::size_t i = begin; i < end; ++i) {
        const double q = std::to_integer<std::int8_t>(quotients[i]);
        values[i] = scale.times(q);
        exact = exact && q != 0 && q >= -kMost && scale.quotient(values[i]) == q;
        largest = std::max(largest, std::fabs(q));
      }
      if (!exact || largest <= kMost / 2.0) {
        throw Damaged("not a valid int8 block");
      }
    }
  }
  template <class Value, class Index>
  static void round(EntriesOut<Value, Index> list, std::size_t count,
                    Rounding<Value, Index>& rounding) {
    round_by_blocks<Int8Grid>(list, count, kBlock, rounding);
  }
};

template <class Values>
class Coded final : public Codec {
 public:
  explicit constexpr Coded(const BlockCoder* blocks = nullptr) : blocks_(blocks) {}

  List make(EntryType type, std::size_t capacity, BufferSource& buffers) const override {
    List list;
    list.memory = buffers.buffer(capacity * type.bytes());
    list.capacity = capacity;
    lay_out(type, list, list.memory.data(), capacity);
    return list;
  }

  void close(EntryType /*type*/, List& list, std::size_t count) const override {
    list.size = count;
  }

  [[nodiscard]] bool rounds() const override { return Values::kRounds; }
  [[nodiscard]] const BlockCoder* blocks() const override { return blocks_; }
  [[nodiscard]] bool parts_are_rounded() const override { return !Values::kByBlocks; }
  [[nodiscard]] bool ties() const override { return Values::kTies; }
  Rounded round(EntryType type, const List& list, std::size_t count, const List* lost,
                bool zeros_are_lost) const override {
    if constexpr (!Values::kRounds) {
      return Codec::round(type, list, count, lost, zeros_are_lost);
    } else {
      const KeepDenormals guard;
      Rounded rounded;
      visit_entry(type, [&]<class Value, class Index>() {
        using Out = EntriesOut<Value, Index>;
        const Out entries = list.output<Value, Index>();
        Rounding<Value, Index> rounding(
            entries, lost == nullptr ? Out{} : lost->output<Value, Index>(), zeros_are_lost);
        Values::round(entries, count, rounding);
        rounded = rounding.rounded();
      });
      return rounded;
    }
  }

  std::size_t message_bytes(EntryType type, std::size_t capacity, std::uint64_t d) const override {
    return kFrontBytes + value_bytes(type, capacity) + rice::capacity_for(capacity, d);
  }

  /// The estimate assumes log2 C(d, n) bits for the indices; the code takes 1 to 2 % more.
  double expected_bytes(EntryType type, std::uint64_t entries, std::uint64_t d) const override {
    if (entries == 0) {
      return kFrontBytes;
    }
    return static_cast<double>(kFrontBytes + value_bytes(type, entries)) +
           static_cast<double>(entries) * bits_of_index(entries, d) / 8;
  }

  std::span<std::byte> encode(EntryType type, const List& list, std::uint64_t d,
                              BufferSource& buffers) const override {
    const std::span<std::byte> message = buffers.buffer(message_bytes(type, list.size, d));
    std::byte* const values = message.data() + kFrontBytes;
    std::byte* const code = values + value_bytes(type, list.size);
    std::size_t code_bytes = 0;
    const KeepDenormals guard;
    visit_entry(type, [&]<class Value, class Index>() {
      const Entries<Value, Index> entries = list.entries<Value, Index>();
      Values::write(entries.values, entries.size, values);
      code_bytes = rice::encode(entries.indices, entries.size, code);
    });
    return message.first(static_cast<std::size_t>(code - message.data()) + code_bytes);
  }

  List decode(EntryType type, const ListHeader& says, std::span<std::byte> message,
              std::size_t capacity, std::uint64_t d, BufferSource& buffers) const override {
    check(type, says, message.size(), capacity);
    const std::byte* const values = message.data() + kFrontBytes;
    const std::span<const std::byte> code =
        message.subspan(kFrontBytes + value_bytes(type, says.count));
    List list = make(type, says.count, buffers);
    const KeepDenormals guard;
    visit_entry(type, [&]<class Value, class Index>() {
      const EntriesOut<Value, Index> output = list.output<Value, Index>();
      rice::decode(code, output.indices, says.count, d);
      Values::read(values, says.count, output.values);
    });
    list.size = says.count;
    return list;
  }

 private:
  /// Throws Damaged for errors that can be detected without reading the body.
  static void check(EntryType type, const ListHeader& says, std::size_t message_bytes,
                    std::size_t capacity) {
    if (says.index_bytes != type.index_bytes) {
      throw Damaged(
          fmt::format("{}-byte indices, expected {}", says.index_bytes, type.index_bytes));
    }
    // Check the count first: its product below must not wrap around.
    if (says.count > capacity || message_bytes < kFrontBytes + value_bytes(type, says.count)) {
      throw Damaged(
          fmt::format("{} entries in {} bytes, expected at most {} entries and {} bytes "
                      "for their values",
                      says.count, message_bytes, capacity,
                      says.count > capacity ? 0 : value_bytes(type, says.count)));
    }
  }

  static std::size_t value_bytes(EntryType type, std::size_t count) {
    std::size_t bytes = 0;
    visit_entry(type,
                [&]<class Value, class Index>() { bytes = Values::template bytes<Value>(count); });
    return bytes;
  }

  const BlockCoder* blocks_;
};

const Coded<OneByOne<AsTheyAre>> kLosslessCodec;
const Coded<OneByOne<Rounded16<Bfloat16>>> kBf16Codec(&bf16_blocks());
const Coded<OneByOne<Rounded16<Float16>>> kFp16Codec(&fp16_blocks());
const Coded<AsInt8> kInt8Codec(&int8_blocks());
const Coded<As4Bit> k4BitCodec(&four_bit_blocks());
const Coded<AsLevels<2>> k2BitCodec(&two_bit_blocks());
const Coded<AsLevels<1>> kTernaryCodec(&ternary_blocks());  // lists have no zeros
const Coded<AsLevels<1>> kSignCodec(&sign_blocks());

}  // namespace

const CodecRow kLossless{"lossless", "indices coded, values unchanged", kLosslessCodec};
const CodecRow kBf16{"bf16", "indices coded, values rounded to bfloat16", kBf16Codec};
const CodecRow kFp16{"fp16", "indices coded, values rounded to float16", kFp16Codec};
const CodecRow kInt8{"int8", "indices coded, values as 8-bit integers times a scale per block",
                     kInt8Codec};
const CodecRow k4Bit{"4bit", "indices coded, values as one of sixteen levels of their block",
                     k4BitCodec};
const CodecRow k2Bit{"2bit", "indices coded, signs and one of two magnitudes per block",
                     k2BitCodec};
const CodecRow kTernary{
    "ternary", "dense: zero, or a sign times one magnitude per block; lists: sign", kTernaryCodec};
const CodecRow kSign{"sign", "indices coded, signs times the mean magnitude of their block",
                     kSignCodec};

}  // namespace gtopk::sparse
