#include "torch_backend/tensors.hpp"

#include <array>
#include <string_view>

namespace gtopk::torch_backend {
namespace {

template <class Enum, std::size_t N>
Enum named(const std::string& name, const std::array<Enum, N>& there, const char* what,
           const char* planned) {
  std::string names;
  for (const Enum candidate : there) {
    if (name == to_string(candidate)) return candidate;
    names += (names.empty() ? "" : ", ") + std::string(to_string(candidate));
  }
  const bool later = std::string_view(planned).find(" " + name + " ") != std::string_view::npos;
  TORCH_CHECK_NOT_IMPLEMENTED(!later, "gtopk: ", what, "='", name,
                              "' is not there yet; there are: ", names);
  TORCH_CHECK_VALUE(false, "gtopk: ", what, "='", name, "' is unknown; there are: ", names);
}

}  // namespace

DataType data_type(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return DataType::kFloat32;
    case at::kDouble:
      return DataType::kFloat64;
    case at::kBFloat16:
      return DataType::kBfloat16;
    case at::kHalf:
      return DataType::kFloat16;
    case at::kByte:
      return DataType::kUint8;
    case at::kChar:
      return DataType::kInt8;
    case at::kShort:
      return DataType::kInt16;
    case at::kInt:
      return DataType::kInt32;
    case at::kLong:
      return DataType::kInt64;
    case at::kBool:
      return DataType::kBool;
    default:
      break;
  }
  TORCH_CHECK_VALUE(false, "gtopk: no reduction of dtype ", tensor.scalar_type());
}

ReduceOp reduce_op(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return ReduceOp::kSum;
    case c10d::ReduceOp::AVG:
      return ReduceOp::kAvg;
    case c10d::ReduceOp::PRODUCT:
      return ReduceOp::kProduct;
    case c10d::ReduceOp::MIN:
      return ReduceOp::kMin;
    case c10d::ReduceOp::MAX:
      return ReduceOp::kMax;
    case c10d::ReduceOp::BAND:
      return ReduceOp::kBitAnd;
    case c10d::ReduceOp::BOR:
      return ReduceOp::kBitOr;
    case c10d::ReduceOp::BXOR:
      return ReduceOp::kBitXor;
    default:
      break;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(false, "gtopk: ReduceOp.PREMUL_SUM is not there yet");
}

Algorithm algorithm_named(const std::string& name) {
  return named(
      name,
      std::array{Algorithm::kGtopk, Algorithm::kGtopkTree, Algorithm::kTopk, Algorithm::kDense},
      "algorithm", " exact rs-ag sketch auto ");
}

PutBack put_back_named(const std::string& name) {
  return named(name, std::array{PutBack::kOwn, PutBack::kMerged}, "put_back", "");
}

Selector selector_named(const std::string& name) {
  return named(name, std::array{Selector::kExact}, "select", " gaussian sampled threshold ");
}

void check_dense_cpu(const at::Tensor& tensor, const char* what) {
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == at::kStrided, "gtopk: ", what, " of a ",
                              tensor.layout(), " tensor is not there yet");
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.device().is_cpu(), "gtopk: ", what, " of a tensor on ",
                              tensor.device(), " is not there yet; this version works on the CPU");
}

const at::Tensor& only(const std::vector<at::Tensor>& tensors, const char* what) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "gtopk: ", what, " takes one tensor, ", tensors.size(),
                    " given");
  check_dense_cpu(tensors.front(), what);
  return tensors.front();
}

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

}  // namespace gtopk::torch_backend
