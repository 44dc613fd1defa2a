// Collectives: what all ranks must have asked for alike, and the header that carries it. A
// difference is an error on both sides that names both sides' values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "gtopk/types.hpp"

namespace gtopk::engine {
class GroupView;
}

namespace gtopk::collectives {

enum class Collective : std::uint8_t {
  kSparseAllReduce = 1,
  kAllReduce,
  kBroadcast,
  kAllGather,
  kBarrier,
};
[[nodiscard]] std::string_view to_string(Collective collective);

/// Fields that a collective has no use for stay at their defaults on every rank.
struct Signature {
  Collective collective = Collective::kBarrier;
  DataType dtype = DataType::kUint8;
  ReduceOp op = ReduceOp::kSum;
  Algorithm algorithm = Algorithm::kDense;
  PutBack put_back = PutBack::kOwn;
  Selector selector = Selector::kExact;
  std::uint32_t root = 0;
  std::uint64_t d = 0;  ///< elements
  std::uint64_t k = 0;  ///< entries selected per rank, sparse only

  bool operator==(const Signature&) const = default;
};

[[noreturn]] void refuse_unknown(unsigned value, std::string_view what);

/// Throws Error{kInvalidArgument} for a number that stands for none of the enumeration's values, as
/// a cast can make it.
template <class Enumeration>
void check_known(Enumeration value, std::string_view what) {
  if (to_string(value) == "unknown") refuse_unknown(static_cast<unsigned>(value), what);
}

/// "sparse_all_reduce(algorithm=gtopk, d=100, k=5, dtype=float32, op=SUM, put_back=own)"
[[nodiscard]] std::string describe(const Signature& signature);

/// The first bytes of a message: who agrees on what, and what follows.
struct Header {
  static constexpr std::uint16_t kNonFinite =
      1;  ///< this subtree met NaN or infinity; no entries follow

  std::uint32_t magic = 0x314b5447;  // "GTK1", little-endian
  std::uint16_t version = 1;
  std::uint16_t flags = 0;
  std::uint8_t collective = 0;
  std::uint8_t dtype = 0;
  std::uint8_t op = 0;
  std::uint8_t algorithm = 0;
  std::uint8_t put_back = 0;
  std::uint8_t selector = 0;
  std::uint8_t wire = 0;         ///< value format: 0 is the accumulation type
  std::uint8_t index_bytes = 0;  ///< 4 or 8; 0 when no entries can follow
  std::uint32_t root = 0;
  std::uint32_t reserved = 0;
  std::uint64_t sequence = 0;
  std::uint64_t d = 0;
  std::uint64_t k = 0;
  std::uint64_t count = 0;  ///< entries that follow
};
inline constexpr std::size_t kHeaderBytes = 64;
static_assert(sizeof(Header) <= kHeaderBytes);

/// What follows a header, for lists of entries.
struct Payload {
  std::uint64_t count = 0;
  std::uint16_t flags = 0;
  std::uint8_t index_bytes = 0;
};

/// Writes the first kHeaderBytes of `message`.
void write_header(std::span<std::byte> message, const Signature& signature, std::uint64_t sequence,
                  Payload payload = {});

/// Throws Error{kMismatch} unless the header announces `count` elements and nothing else, as
/// messages of agreed size do.
void require_payload(const Header& header, std::uint64_t count, const engine::GroupView& group,
                     std::uint32_t from);

/// Reads and checks the header of a message of `message.size()` bytes that `from` sent.
/// Throws Error{kMismatch} with both sides' values when the signatures differ, or when it is no
/// header of this version.
[[nodiscard]] Header read_header(std::span<const std::byte> message, const Signature& mine,
                                 const engine::GroupView& group, std::uint32_t from);

}  // namespace gtopk::collectives
