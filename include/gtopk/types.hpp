// Public surface: the vocabulary of the collectives (element types, reductions, algorithms).
// It knows no transport, no torch and no CUDA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace gtopk {

/// Element type of a tensor. The sparse collectives take the four floating types.
enum class DataType : std::uint8_t {
  kFloat32,
  kFloat64,
  kBfloat16,
  kFloat16,
  kUint8,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kBool,
};

/// A type that the core has no name for and that is only moved: `code`, below 128, is the caller's.
[[nodiscard]] constexpr DataType opaque_type(std::uint8_t code) {
  return static_cast<DataType>(code | 128U);
}

/// Reduction of a dense all-reduce; sparse ones take kSum and kAvg.
enum class ReduceOp : std::uint8_t { kSum, kAvg, kProduct, kMin, kMax, kBitAnd, kBitOr, kBitXor };

/// How the ranks' selections become one result; each name's definition is in docs/algorithms.md.
enum class Algorithm : std::uint8_t { kGtopk, kGtopkTree, kTopk, kDense };

/// Where a value goes that was selected and not delivered.
enum class PutBack : std::uint8_t { kOwn, kMerged };

/// How each rank finds its k largest entries.
enum class Selector : std::uint8_t { kExact };

[[nodiscard]] std::string_view to_string(DataType type);
[[nodiscard]] std::string_view to_string(ReduceOp op);
[[nodiscard]] std::string_view to_string(Algorithm algorithm);
[[nodiscard]] std::string_view to_string(PutBack put_back);
[[nodiscard]] std::string_view to_string(Selector selector);

/// Bytes of one element.
[[nodiscard]] std::size_t size_of(DataType type);

/// float32, float64, bfloat16, float16.
[[nodiscard]] bool is_floating(DataType type);

/// The type of acc, merge and residual: float32 for the half types, else the type itself.
[[nodiscard]] DataType accumulation_type(DataType type);

/// k = min(d, max(1, floor(density * d + 1/2))), and 0 only for d = 0.
[[nodiscard]] std::uint64_t selection_size(std::uint64_t d, double density);

/// What a sparse all-reduce is asked to do; see docs/algorithms.md.
struct SparseOptions {
  std::uint64_t k = 0;  ///< entries each rank selects, 1 <= k; larger than d means d
  Algorithm algorithm = Algorithm::kGtopk;
  Selector selector = Selector::kExact;
  PutBack put_back = PutBack::kOwn;
  ReduceOp op = ReduceOp::kSum;
};

}  // namespace gtopk
