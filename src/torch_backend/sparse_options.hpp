// Torch backend: the options of a sparse all-reduce as one value that Python makes and passes on,
// torch.classes.gtopk.SparseOptions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "gtopk/types.hpp"
#include "src/torch_backend/torch_headers.hpp"

namespace gtopk::torch_backend {

/// Options under Python's names; options that are None in Python are absent. `op` is the number of
/// a torch ReduceOp.
struct NamedOptions {
  std::optional<std::int64_t> k;
  std::optional<double> density;
  std::string algorithm;
  std::string select;
  std::int64_t block;
  std::string put_back;
  std::optional<std::string> wire;
  std::string semantics;
  std::int64_t op;
  std::string mean;
};

class TorchOptions final : public torch::CustomClassHolder {
 public:
  /// Makes the options. Throws ValueError for options that are invalid in any group.
  explicit TorchOptions(const NamedOptions& given);

  [[nodiscard]] const SparseOptions& value() const { return options_; }
  /// The fields of gtopk::CallTraits by name. Throws ValueError for the algorithm `auto`.
  [[nodiscard]] c10::Dict<std::string, bool> traits() const;
  /// See gtopk::most_delivered(). Throws ValueError for the algorithm `auto`.
  [[nodiscard]] std::int64_t most_delivered(std::int64_t d, std::int64_t ranks) const;

 private:
  SparseOptions options_;
};

}  // namespace gtopk::torch_backend
