#include "src/numbers/element_types.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "gtopk/buffer.hpp"
#include "gtopk/error.hpp"

namespace gtopk {

std::string_view to_string(DataType type) {
  std::string_view name = "unknown";
  visit_row(type, [&](const auto& row) { name = row.name; });
  return name;
}

std::string name_of(DataType type) {
  const auto code = static_cast<std::uint8_t>(type);
  if (type != opaque_type(code)) {
    return std::string(to_string(type));
  }
  return fmt::format("opaque({})", code & 127U);
}

std::size_t size_of(DataType type) {
  std::size_t size = 0;
  visit_type(type, [&]<class T>() { size = sizeof(T); });
  return size;
}

std::size_t bytes_of(std::uint64_t elements, DataType dtype) {
  const std::size_t size = std::max(size_of(dtype), std::size_t{1});
  if (elements > std::numeric_limits<std::size_t>::max() / size) {
    throw Error(
        ErrorKind::kInvalidArgument,
        fmt::format("{} elements of {} do not fit in any memory", elements, name_of(dtype)));
  }
  return elements * size;
}

std::uint64_t elements_in(std::size_t bytes, DataType dtype) {
  const std::size_t size = std::max(size_of(dtype), std::size_t{1});
  if (bytes % size != 0) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("{} bytes are not a whole number of elements of {}, of {} bytes each",
                            bytes, name_of(dtype), size));
  }
  return bytes / size;
}

void refuse_null(std::uint64_t count, DataType dtype) {
  throw Error(ErrorKind::kInvalidArgument,
              fmt::format("a buffer of {} elements of {} needs memory, but its pointer is null",
                          count, name_of(dtype)));
}

bool is_floating(DataType type) {
  return visit_floating(type, []<class T>() {});
}

bool is_complex(DataType type) {
  bool complex = false;
  visit_type(type, [&]<class T>() { complex = kIsComplex<T>; });
  return complex;
}

DataType accumulation_type(DataType type) {
  return type == DataType::kBfloat16 || type == DataType::kFloat16 ? DataType::kFloat32 : type;
}

std::uint64_t selection_size(std::uint64_t d, double density) {
  const auto rounded =
      static_cast<std::uint64_t>(std::floor(density * static_cast<double>(d) + 0.5));
  return std::min<std::uint64_t>(d, std::max<std::uint64_t>(1, rounded));
}

std::uint64_t selection_size(std::uint64_t d, double density, std::uint64_t block) {
  if (block == 0) {
    throw Error(ErrorKind::kInvalidArgument,
                "the selection's blocks have 0 elements, expected at least 1");
  }
  const std::uint64_t whole = d / block;
  const std::uint64_t of_whole = whole == 0 ? 0 : whole * selection_size(block, density);
  return of_whole + selection_size(d % block, density);
}

}  // namespace gtopk
