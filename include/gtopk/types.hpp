// Public surface: the vocabulary of the collectives (element types, reductions, algorithms).
// It knows no transport, no torch and no CUDA.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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

/// A type that the core has no name for and that is only moved: `code`, below 128, is the caller's.
[[nodiscard]] constexpr DataType opaque_type(std::uint8_t code) {
  return static_cast<DataType>(code | 128U);
}

/// A piece of a tensor that lies in several.
struct Segment {
  void* data = nullptr;
  std::uint64_t size = 0;  ///< elements
};

/// Reduction of a dense all-reduce; sparse ones take kSum and kAvg.
enum class ReduceOp : std::uint8_t {
  kSum,
  kAvg,
  kProduct,
  kMin,
  kMax,
  kBitAnd,
  kBitOr,
  kBitXor,
  kPremulSum,  ///< the sum of each rank's elements times a factor of its own
};

/// Where a value goes that was selected and not delivered.
enum class PutBack : std::uint8_t { kOwn, kMerged };

/// What a result must be; each is content with those above it.
enum class Semantics : std::uint8_t {
  kExactSum,  ///< at each index delivered, the sum of all that was selected there
  kGtopk,     ///< gTop-k's: partial sums may be left behind on the way up the tree
  kAny,       ///< that of any algorithm which loses no mass
};

[[nodiscard]] std::string_view to_string(DataType type);
[[nodiscard]] std::string_view to_string(ReduceOp op);
[[nodiscard]] std::string_view to_string(PutBack put_back);
[[nodiscard]] std::string_view to_string(Semantics semantics);

/// Bytes of one element.
[[nodiscard]] std::size_t size_of(DataType type);

/// float32, float64, bfloat16, float16.
[[nodiscard]] bool is_floating(DataType type);

/// complex64, complex128.
[[nodiscard]] bool is_complex(DataType type);

/// The type of acc, merge and residual: float32 for the half types, else the type itself.
[[nodiscard]] DataType accumulation_type(DataType type);

/// k = min(d, max(1, floor(density * d + 1/2))), and 0 only for d = 0.
[[nodiscard]] std::uint64_t selection_size(std::uint64_t d, double density);
/// The same of each block of `block` >= 1 elements, the last one perhaps shorter, and their sum.
[[nodiscard]] std::uint64_t selection_size(std::uint64_t d, double density, std::uint64_t block);

/// What a selector keeps from one step of a tensor to the next, beside the residual. Zeros: nothing
/// yet. What the numbers mean is the selector's business.
struct SelectorState {
  std::array<double, 4> numbers{};
};

/// What a sparse all-reduce is asked to do; see docs/algorithms.md.
struct SparseOptions {
  /// Entries each rank selects, 1 <= k; larger than d means d. 0: `density` is given.
  std::uint64_t k = 0;
  /// How the ranks' selections become one result: a name out of algorithms(), or `auto`: the
  /// cheapest of those that keep `semantics`, by costs measured on this job (gtopk/plan.hpp).
  std::string algorithm = "gtopk";
  /// How each rank finds its largest entries: a name out of selectors().
  std::string selector = "exact";
  /// How lists of entries travel: a name out of wires().
  std::string wire = "lossless";
  PutBack put_back = PutBack::kOwn;
  ReduceOp op = ReduceOp::kSum;
  /// What `random-k` draws its indices from and `sketch` its hashes, the same on all ranks. None:
  /// the number of the call in its group, so that each call draws others.
  std::optional<std::uint64_t> seed = std::nullopt;
  /// In the place of k: a share in (0, 1], of which k = selection_size(d, density). 0: k is given.
  double density = 0;
  /// Elements of a block, for the selector `block`.
  std::uint64_t block = 4096;
  /// Read when the step selects and written when it has happened, for selectors that remember;
  /// valid until `done`. Null: each step starts anew.
  SelectorState* state = nullptr;
  /// What the result must be. It rules algorithms out; one that is named and ruled out is an error.
  Semantics semantics = Semantics::kAny;
  /// What the result is multiplied by before it is rounded to the tensor's type, finite and above
  /// 0: the loss scale, where gradients came in divided by it. Residuals know nothing of it.
  double scale = 1;
  /// d elements of the accumulation type, or null: the caller's momentum, which is already in the
  /// gradient. Zero afterwards at each index of whose residual what this rank sent was cleared;
  /// `dense` leaves it alone. Momentum factor masking of DGC (Lin et al., arXiv 1712.01887).
  void* momentum = nullptr;
  /// Waited for between exchange and commit: see gtopk/gate.hpp. Null: the call stands alone.
  std::shared_ptr<Gate> gate = nullptr;
};

/// Where a sparse all-reduce notes what it delivered, for a caller whose tensor may be overwritten
/// before it knows whether to keep the result: the entries of the final set and their sums, before
/// the division by the ranks and the rounding to the tensor's type. A step that did not happen
/// writes nothing.
struct Delivered {
  /// Of `room` elements; untouched by `dense`, whose entries are all, in order.
  std::int64_t* indices = nullptr;
  /// `room` elements of the accumulation type; null: nothing is noted.
  void* values = nullptr;
  /// At least as many as the result may have, most_delivered(): s, the most that a rank selects (k,
  /// or what docs/algorithms.md says of the selector); of `topk` s * ranks, of `dense` d; and d at
  /// most.
  std::uint64_t room = 0;
};

/// A name that an option can have, and what it means in one line.
struct Choice {
  std::string_view name;
  std::string_view description;
};
/// What there is, in the order of docs/algorithms.md.
[[nodiscard]] std::vector<Choice> algorithms();
[[nodiscard]] std::vector<Choice> selectors();
[[nodiscard]] std::vector<Choice> wires();

}  // namespace gtopk
