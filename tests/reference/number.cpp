// Reference: conversions between bytes and double, from the formats' definitions.
#include "tests/reference/number.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

#include <fmt/format.h>

namespace gtopk::reference {
namespace {

/// sign 1 | exponent | mantissa, the layout of IEEE 754's binary formats.
struct Format {
  int exponent_bits;
  int mantissa_bits;
  [[nodiscard]] int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  [[nodiscard]] int lowest_exponent() const { return 1 - bias(); }  ///< of a normal number
  [[nodiscard]] double largest() const {
    return std::ldexp(2.0 - std::ldexp(1.0, -mantissa_bits), bias());
  }
};

Format format_of(DataType type) {
  switch (type) {
    case DataType::kFloat32:
      return {8, 23};
    case DataType::kFloat64:
      return {11, 52};
    case DataType::kBfloat16:
      return {8, 7};
    case DataType::kFloat16:
      return {5, 10};
    case DataType::kUint8:
    case DataType::kInt8:
    case DataType::kInt16:
    case DataType::kInt32:
    case DataType::kInt64:
    case DataType::kBool:
    case DataType::kUint16:
    case DataType::kUint32:
    case DataType::kUint64:
    case DataType::kComplex64:
    case DataType::kComplex128:
      break;
  }
  throw std::invalid_argument("the reference knows the four floating types only");
}

/// To the nearest multiple of the format's spacing at `value`; the default rounding mode breaks
/// ties to even.
double round_to(const Format& format, double value) {
  if (value == 0.0 || !std::isfinite(value) || format.mantissa_bits == 52) {
    return value;
  }
  const int exponent = std::max(std::ilogb(value), format.lowest_exponent());
  const int spacing = exponent - format.mantissa_bits;
  const double nearest = std::ldexp(std::nearbyint(std::ldexp(value, -spacing)), spacing);
  if (std::fabs(nearest) <= format.largest()) {
    return nearest;
  }
  return std::copysign(std::numeric_limits<double>::infinity(), value);
}

std::uint16_t half_bits(const Format& format, double value) {
  const auto sign = static_cast<unsigned>(std::signbit(value)) << 15U;
  const unsigned infinity = ((1U << static_cast<unsigned>(format.exponent_bits)) - 1U)
                            << static_cast<unsigned>(format.mantissa_bits);
  if (std::isnan(value)) {
    const unsigned quiet = 1U << static_cast<unsigned>(format.mantissa_bits - 1);
    return static_cast<std::uint16_t>(infinity | quiet);
  }
  const double magnitude = std::fabs(round_to(format, value));
  if (std::isinf(magnitude)) {
    return static_cast<std::uint16_t>(sign | infinity);
  }
  if (magnitude <
      std::ldexp(1.0, format.lowest_exponent())) {  // zero or subnormal: a multiple of the smallest
    const double count = std::ldexp(magnitude, format.mantissa_bits - format.lowest_exponent());
    return static_cast<std::uint16_t>(sign | static_cast<unsigned>(count));
  }
  const int exponent = std::ilogb(magnitude);
  const double fraction = std::ldexp(magnitude, -exponent) - 1.0;
  const auto mantissa = static_cast<unsigned>(std::ldexp(fraction, format.mantissa_bits));
  const auto biased = static_cast<unsigned>(exponent + format.bias());
  return static_cast<std::uint16_t>(sign | (biased << static_cast<unsigned>(format.mantissa_bits)) |
                                    mantissa);
}

double half_value(const Format& format, std::uint16_t bits) {
  const double sign = (bits & 0x8000U) != 0 ? -1.0 : 1.0;
  const unsigned exponents = (1U << static_cast<unsigned>(format.exponent_bits)) - 1U;
  const unsigned exponent = (bits >> static_cast<unsigned>(format.mantissa_bits)) & exponents;
  const unsigned mantissa = bits & ((1U << static_cast<unsigned>(format.mantissa_bits)) - 1U);
  if (exponent == exponents) {
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) {
    return sign * std::ldexp(mantissa, format.lowest_exponent() - format.mantissa_bits);
  }
  const double fraction = std::ldexp(mantissa, -format.mantissa_bits);
  return sign * std::ldexp(1.0 + fraction, static_cast<int>(exponent) - format.bias());
}

template <class Element>
Element element_at(const Bytes& bytes, std::uint64_t index) {
  Element element{};
  std::memcpy(&element, bytes.data() + index * sizeof element, sizeof element);
  return element;
}

template <class Element>
void put_element(Bytes& bytes, std::uint64_t index, Element element) {
  std::memcpy(bytes.data() + index * sizeof element, &element, sizeof element);
}

}  // namespace

Bytes zeros(DataType type, std::uint64_t elements) { return Bytes(elements * size_of(type)); }

double load(DataType type, const Bytes& bytes, std::uint64_t index) {
  if (type == DataType::kFloat64) {
    return element_at<double>(bytes, index);
  }
  if (type == DataType::kFloat32) {
    return element_at<float>(bytes, index);
  }
  return half_value(format_of(type), element_at<std::uint16_t>(bytes, index));
}

void store(DataType type, Bytes& bytes, std::uint64_t index, double value) {
  if (std::isnan(value)) {
    value = std::numeric_limits<double>::quiet_NaN();
  }
  if (type == DataType::kFloat64) {
    return put_element(bytes, index, value);
  }
  if (type == DataType::kFloat32) {
    return put_element(bytes, index, static_cast<float>(round_to(format_of(type), value)));
  }
  put_element(bytes, index, half_bits(format_of(type), value));
}

double rounded(DataType type, double value) { return round_to(format_of(type), value); }

double epsilon(DataType type) { return std::ldexp(1.0, -format_of(type).mantissa_bits); }

double smallest(DataType type) {
  const Format format = format_of(type);
  return std::ldexp(1.0, format.lowest_exponent() - format.mantissa_bits);
}

double largest(DataType type) { return format_of(type).largest(); }

std::string difference(DataType type, const Bytes& expected, const Bytes& seen) {
  if (expected == seen) {
    return {};
  }
  if (expected.size() != seen.size()) {
    return fmt::format("{} bytes expected, {} seen", expected.size(), seen.size());
  }
  const std::size_t width = size_of(type);
  std::size_t differing = 0;
  std::size_t first = expected.size();
  for (std::size_t at = 0; at + width <= expected.size(); at += width) {
    if (std::equal(expected.begin() + static_cast<std::ptrdiff_t>(at),
                   expected.begin() + static_cast<std::ptrdiff_t>(at + width),
                   seen.begin() + static_cast<std::ptrdiff_t>(at))) {
      continue;
    }
    first = std::min(first, at / width);
    ++differing;
  }
  return fmt::format("{} of {} {} elements differ, the first at {}: {} expected, {} seen",
                     differing, expected.size() / width, to_string(type), first,
                     load(type, expected, first), load(type, seen, first));
}

}  // namespace gtopk::reference
