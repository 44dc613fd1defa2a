#include "src/torch_backend/tensors.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

#include "src/torch_backend/device_streams.hpp"

namespace gtopk::torch_backend {
namespace {

std::optional<DataType> named_type(at::ScalarType type) {
  switch (type) {
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
    case at::kUInt16:
      return DataType::kUint16;
    case at::kUInt32:
      return DataType::kUint32;
    case at::kUInt64:
      return DataType::kUint64;
    case at::kComplexFloat:
      return DataType::kComplex64;
    case at::kComplexDouble:
      return DataType::kComplex128;
    default:
      return std::nullopt;
  }
}

bool has_memory(const at::Tensor& tensor) {
  return tensor.has_storage() && tensor.storage().data() != nullptr;
}

}  // namespace

DataType data_type(const at::Tensor& tensor) {
  const std::optional<DataType> type = named_type(tensor.scalar_type());
  TORCH_CHECK_VALUE(type, "gtopk: there is no reduction of dtype ", tensor.scalar_type());
  return *type;
}

DataType type_to_move(const at::Tensor& tensor) {
  const at::ScalarType type = tensor.scalar_type();
  return named_type(type).value_or(opaque_type(static_cast<std::uint8_t>(type)));
}

std::string with_names_of_types(std::string text) {
  static constexpr std::string_view kStart = "opaque(";
  for (std::size_t at = text.find(kStart); at != std::string::npos; at = text.find(kStart, at)) {
    const std::size_t end = text.find(')', at);
    int number = static_cast<int>(at::ScalarType::NumOptions);
    const char* const digits = text.data() + at + kStart.size();
    std::from_chars(digits, text.data() + std::min(end, text.size()), number);
    if (end == std::string::npos || number >= static_cast<int>(at::ScalarType::NumOptions)) {
      break;
    }
    const auto type = static_cast<at::ScalarType>(number);
    text.replace(at, end + 1 - at, c10::toString(type));
  }
  return text;
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
    case c10d::ReduceOp::PREMUL_SUM:
      TORCH_CHECK_NOT_IMPLEMENTED(false, "gtopk: a sparse all-reduce does not take PREMUL_SUM");
    default:
      break;
  }
  TORCH_CHECK_VALUE(false, "gtopk: there is no reduction number ", static_cast<int>(op.op_));
}

Reduction reduction(const c10d::ReduceOp& op) {
  if (op.op_ != c10d::ReduceOp::PREMUL_SUM) {
    return {reduce_op(op)};
  }
  TORCH_CHECK_VALUE(op.supplement_,
                    "gtopk: ReduceOp.PREMUL_SUM has no factor: make it with "
                    "torch.distributed._make_nccl_premul_sum(factor)");
  // This is the only kind of supplement, despite its name.
  const auto* const given = static_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  const at::Tensor& factor = given->tensor_factor;
  if (!factor.defined()) {
    return {ReduceOp::kPremulSum, given->double_factor};
  }
  TORCH_CHECK_VALUE(factor.numel() == 1 && !factor.is_complex(),
                    "gtopk: the factor of ReduceOp.PREMUL_SUM must be one real number; given ",
                    factor.dtype(), " of shape ", factor.sizes());
  return {ReduceOp::kPremulSum, factor.item<double>()};
}

void check_dense(const at::Tensor& tensor, const char* what) {
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == at::kStrided, "gtopk: ", what, " of a ",
                              tensor.layout(), " tensor is not implemented");
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.device().is_cpu() || is_served(tensor.device()),
                              "gtopk: ", what, " of a tensor on ", tensor.device(),
                              " is not implemented; available: CPU and CUDA");
  TORCH_CHECK_VALUE(tensor.numel() == 0 || has_memory(tensor), "gtopk: ", what, " of a tensor of ",
                    "sizes ", tensor.sizes(), " that has no memory: it was freed, or the tensor ",
                    "is a placeholder (a FakeTensor)");
}

const at::Tensor& only(const std::vector<at::Tensor>& tensors, const char* what) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "gtopk: ", what, " takes one tensor, ", tensors.size(),
                    " given");
  check_dense(tensors.front(), what);
  return tensors.front();
}

}  // namespace gtopk::torch_backend
