#include "src/collectives/reduction.hpp"

#include <fmt/format.h>

#include "gtopk/error.hpp"
#include "src/numbers/check_known.hpp"

namespace gtopk {

std::string_view to_string(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "SUM";
    case ReduceOp::kAvg:
      return "AVG";
    case ReduceOp::kProduct:
      return "PRODUCT";
    case ReduceOp::kMin:
      return "MIN";
    case ReduceOp::kMax:
      return "MAX";
    case ReduceOp::kBitAnd:
      return "BAND";
    case ReduceOp::kBitOr:
      return "BOR";
    case ReduceOp::kBitXor:
      return "BXOR";
    case ReduceOp::kPremulSum:
      return "PREMUL_SUM";
  }
  return "unknown";
}

}  // namespace gtopk

namespace gtopk::collectives {

void check_reduction(DataType type, ReduceOp op, double factor) {
  check_known(type, "data type");
  check_known(op, "reduction");
  const bool bitwise = op == ReduceOp::kBitAnd || op == ReduceOp::kBitOr || op == ReduceOp::kBitXor;
  const bool ordered = op == ReduceOp::kMin || op == ReduceOp::kMax;
  const bool complex = is_complex(type);
  if ((bitwise && (is_floating(type) || complex)) || (ordered && complex) ||
      (op == ReduceOp::kAvg && type == DataType::kBool) ||
      (op == ReduceOp::kPremulSum && !is_floating(type) && !complex)) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("ReduceOp.{} does not exist for {}", to_string(op), to_string(type)));
  }
  if (op != ReduceOp::kPremulSum && factor != 1) {
    throw Error(
        ErrorKind::kInvalidArgument,
        fmt::format("only ReduceOp.PREMUL_SUM takes a factor: got factor {} with ReduceOp.{}",
                    factor, to_string(op)));
  }
}

}  // namespace gtopk::collectives
