#include "gtopk/types.hpp"

#include <algorithm>
#include <cmath>

#include "gtopk/error.hpp"

namespace gtopk {

std::string_view to_string(DataType type) {
  switch (type) {
    case DataType::kFloat32:
      return "float32";
    case DataType::kFloat64:
      return "float64";
    case DataType::kBfloat16:
      return "bfloat16";
    case DataType::kFloat16:
      return "float16";
    case DataType::kUint8:
      return "uint8";
    case DataType::kInt8:
      return "int8";
    case DataType::kInt16:
      return "int16";
    case DataType::kInt32:
      return "int32";
    case DataType::kInt64:
      return "int64";
    case DataType::kBool:
      return "bool";
  }
  return "unknown";
}

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
  }
  return "unknown";
}

std::string_view to_string(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kGtopk:
      return "gtopk";
    case Algorithm::kGtopkTree:
      return "gtopk-tree";
    case Algorithm::kTopk:
      return "topk";
    case Algorithm::kDense:
      return "dense";
  }
  return "unknown";
}

std::string_view to_string(PutBack put_back) {
  switch (put_back) {
    case PutBack::kOwn:
      return "own";
    case PutBack::kMerged:
      return "merged";
  }
  return "unknown";
}

std::string_view to_string(Selector selector) {
  switch (selector) {
    case Selector::kExact:
      return "exact";
  }
  return "unknown";
}

std::string_view to_string(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalidArgument:
      return "invalid argument";
    case ErrorKind::kMismatch:
      return "mismatch";
    case ErrorKind::kTimeout:
      return "timeout";
    case ErrorKind::kPeerFailed:
      return "peer failed";
    case ErrorKind::kAborted:
      return "aborted";
    case ErrorKind::kTransport:
      return "transport";
    case ErrorKind::kBootstrap:
      return "bootstrap";
    case ErrorKind::kUnsupported:
      return "unsupported";
  }
  return "unknown";
}

std::size_t size_of(DataType type) {
  switch (type) {
    case DataType::kFloat32:
    case DataType::kInt32:
      return 4;
    case DataType::kFloat64:
    case DataType::kInt64:
      return 8;
    case DataType::kBfloat16:
    case DataType::kFloat16:
    case DataType::kInt16:
      return 2;
    case DataType::kUint8:
    case DataType::kInt8:
    case DataType::kBool:
      return 1;
  }
  return 0;
}

bool is_floating(DataType type) {
  return type == DataType::kFloat32 || type == DataType::kFloat64 || type == DataType::kBfloat16 ||
         type == DataType::kFloat16;
}

DataType accumulation_type(DataType type) {
  return type == DataType::kBfloat16 || type == DataType::kFloat16 ? DataType::kFloat32 : type;
}

std::uint64_t selection_size(std::uint64_t d, double density) {
  const auto rounded =
      static_cast<std::uint64_t>(std::floor(density * static_cast<double>(d) + 0.5));
  return std::min<std::uint64_t>(d, std::max<std::uint64_t>(1, rounded));
}

}  // namespace gtopk
