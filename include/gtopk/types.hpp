/// @file
/// The vocabulary of the collectives (element types, reductions, algorithms). It does not depend on
/// the transport, torch or CUDA.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// The C++ library, as its programs and torch's backend use it.
namespace gtopk {

class Gate;

/// Element type of a tensor. The sparse collectives take the four floating types. A complex number
/// is two floats, the real part first.
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
  kUint16,
  kUint32,
  kUint64,
  kComplex64,
  kComplex128,
};

/// A type that the core does not know; it only moves such elements. The caller chooses `code`,
/// below 128.
[[nodiscard]] constexpr DataType opaque_type(std::uint8_t code) {
  return static_cast<DataType>(code | 128U);
}

/// One piece of a tensor that is stored in several pieces.
struct Segment {
  void* data = nullptr;    ///< the first element
  std::uint64_t size = 0;  ///< number of elements
};

/// Reduction of a dense all-reduce; sparse all-reduces take kSum and kAvg.
enum class ReduceOp : std::uint8_t {
  kSum,
  kAvg,
  kProduct,
  kMin,
  kMax,
  kBitAnd,
  kBitOr,
  kBitXor,
  kPremulSum,  ///< the sum of each rank's elements times that rank's factor
};

/// The divisor of a sum in a sparse all-reduce with ReduceOp::kAvg.
enum class MeanOver : std::uint8_t {
  kRanks,         ///< the number of ranks
  kContributors,  ///< at each index, the number of ranks that sent it
};

/// Where a value goes that was selected but not delivered.
enum class PutBack : std::uint8_t {
  kOwn,     ///< it stays with every rank that selected it
  kMerged,  ///< its sum goes to one rank
};

/// What the result must guarantee, strictest first. Each value also accepts the algorithms that the
/// values above it accept. The exception is `dense` on a wire that rounds, whose sums are not
/// exact: only kDense and kAny accept it.
enum class Semantics : std::uint8_t {
  kDense,     ///< all elements in every step: `dense`, whatever the wire
  kExactSum,  ///< at each delivered index, the sum of all values selected there
  kGtopk,     ///< gTop-k's: partial sums may be left out on the way up the tree
  kAny,       ///< any algorithm that loses no mass
};

/// The type's name, such as "float32".
[[nodiscard]] std::string_view to_string(DataType type);
/// The reduction's name, such as "SUM".
[[nodiscard]] std::string_view to_string(ReduceOp op);
/// Its name in texts: "ranks" or "contributors".
[[nodiscard]] std::string_view to_string(MeanOver mean);
/// Its name in texts: "own" or "merged".
[[nodiscard]] std::string_view to_string(PutBack put_back);
/// Its name in texts, such as "exact_sum".
[[nodiscard]] std::string_view to_string(Semantics semantics);

/// Bytes of one element.
[[nodiscard]] std::size_t size_of(DataType type);

/// Whether it is float32, float64, bfloat16 or float16.
[[nodiscard]] bool is_floating(DataType type);

/// Whether it is complex64 or complex128.
[[nodiscard]] bool is_complex(DataType type);

/// The type of accumulators, merges and residuals: float32 for the half types, else the type
/// itself.
[[nodiscard]] DataType accumulation_type(DataType type);

/// k = min(d, max(1, floor(density * d + 1/2))); 0 only for d = 0.
[[nodiscard]] std::uint64_t selection_size(std::uint64_t d, double density);
/// The sum of selection_size() over blocks of `block` >= 1 elements; the last may be shorter.
/// Throws Error{kInvalidArgument} for blocks of no elements.
[[nodiscard]] std::uint64_t selection_size(std::uint64_t d, double density, std::uint64_t block);

/// What a selector keeps from one step of a tensor to the next, besides the residual. All zeros
/// means that nothing is known yet. Only the selector knows what the numbers mean.
struct SelectorState {
  std::array<double, 4> numbers{};  ///< the selector's numbers
};

/// Options of a sparse all-reduce; see docs/algorithms.md.
struct SparseOptions {
  /// The number of entries each rank selects, k >= 1; a k larger than d means d. 0 means to use
  /// `density`.
  std::uint64_t k = 0;
  /// How the ranks' selections become one result: a name from algorithms(), or `auto`: the cheapest
  /// algorithm that satisfies `semantics`, by costs measured on this job (gtopk/plan.hpp).
  std::string algorithm = "gtopk";
  /// How each rank finds its largest entries: a name from selectors().
  std::string selector = "exact";
  /// How lists of entries, and the values of `dense`, are encoded: a name from wires().
  std::string wire = "lossless";
  /// Where a value goes that was selected but not delivered.
  PutBack put_back = PutBack::kOwn;
  /// kSum or kAvg.
  ReduceOp op = ReduceOp::kSum;
  /// The divisor for `op` kAvg. kContributors needs an algorithm that delivers whole sums of
  /// selections: `topk`, `exact`. The lists then carry the number of ranks in each sum.
  MeanOver mean = MeanOver::kRanks;
  /// Seeds the indices of `random-k` and the hashes of `sketch`; the same on all ranks. If unset,
  /// the seed is the call's number in its group, so that each call draws differently.
  std::optional<std::uint64_t> seed = std::nullopt;
  /// A fraction in (0, 1] instead of k: k = selection_size(d, density). 0 means to use `k`.
  double density = 0;
  /// Elements per block, for the selector `block`.
  std::uint64_t block = 4096;
  /// The state of a selector that has memory. It is read at selection, is written once the step has
  /// happened, and must stay valid until `done`. If null, each step starts afresh.
  SelectorState* state = nullptr;
  /// What the result must guarantee. `auto` picks only algorithms that satisfy it; naming one that
  /// does not is an error.
  Semantics semantics = Semantics::kAny;
  /// Multiplies the result before it is rounded to the tensor's type; it is finite and > 0, and its
  /// inverse (for AVG, 2^32 times its inverse) must be finite in the accumulation type. This is the
  /// loss scale when the gradients were divided by it beforehand. Residuals are not scaled.
  double scale = 1;
  /// The caller's momentum, already included in the gradient: d elements of the accumulation type,
  /// or null. It is set to zero at each index whose residual was cleared because this rank sent it;
  /// `dense` leaves it unchanged. This is the momentum factor masking of DGC (Lin et al., arXiv
  /// 1712.01887).
  void* momentum = nullptr;
  /// The gate to wait for between exchange and commit, see gtopk/gate.hpp. If null, the call does
  /// not wait.
  std::shared_ptr<Gate> gate = nullptr;
};

/// Where a sparse all-reduce records what it delivered, for a caller whose tensor may be
/// overwritten before the caller knows whether to keep the result. Recorded are the indices of the
/// final set and their sums, before division and rounding to the tensor's type. A step that did not
/// happen writes nothing.
struct Delivered {
  /// `capacity` elements. `dense` leaves them unchanged, because it delivers all d in order.
  std::int64_t* indices = nullptr;
  /// `capacity` elements of the accumulation type; if null, nothing is recorded.
  void* values = nullptr;
  /// The number of entries that fit; at least most_delivered(), which is min(d, s), where s is the
  /// most entries that a rank selects (k, or the number that docs/algorithms.md gives for the
  /// selector); for `topk` min(d, s * ranks), for `dense` d.
  std::uint64_t capacity = 0;
};

/// A value that an option can have, with a one-line description.
struct Choice {
  std::string_view name;         ///< the name that the option takes
  std::string_view description;  ///< one line
};
/// All algorithms, in the order of docs/algorithms.md.
[[nodiscard]] std::vector<Choice> algorithms();
/// All selectors, in the same order.
[[nodiscard]] std::vector<Choice> selectors();
/// All wires, in the same order.
[[nodiscard]] std::vector<Choice> wires();
/// The algorithms in which each rank selects its own entries.
[[nodiscard]] std::vector<Choice> selecting_algorithms();
/// The algorithms whose cost is predicted: `auto` picks one of them.
[[nodiscard]] std::vector<Choice> predicted_algorithms();

}  // namespace gtopk
