#include "tools/programs/allreduce/data.hpp"

#include <cstring>

#include "src/numbers/element_types.hpp"
#include "src/numbers/half.hpp"
#include "src/numbers/mix.hpp"

namespace gtopk::programs::allreduce {
namespace {

/// Returns 1/u, so that a few values carry most of the mass.
float heavy_tailed(std::uint64_t bits) {
  const float sign = (bits & 1U) != 0 ? 1.0F : -1.0F;
  const float u = static_cast<float>(bits >> 40U) * 0x1p-24F;
  return sign * 0.01F / (1.001F - u);
}

template <class T>
T stored(float value) {
  if constexpr (std::is_same_v<T, Bfloat16>) {
    return to_bfloat16(value);
  } else if constexpr (std::is_same_v<T, Float16>) {
    return to_float16(value);
  } else {
    return static_cast<T>(value);
  }
}

template <class T>
void fill(std::vector<std::byte>& bytes, std::uint64_t n, std::uint64_t seed) {
  for (std::uint64_t i = 0; i < n; ++i) {
    const T value = stored<T>(heavy_tailed(drawn(seed, i)));
    std::memcpy(bytes.data() + i * sizeof value, &value, sizeof value);
  }
}

}  // namespace

std::vector<std::byte> gradient(DataType dtype, std::uint64_t n, std::uint32_t rank) {
  std::vector<std::byte> bytes(n * size_of(dtype));
  const std::uint64_t seed = mix(rank + 1);
  visit_type(dtype, [&]<class T>() {
    if constexpr (kIsFloating<T>) {
      fill<T>(bytes, n, seed);
    }
  });
  return bytes;
}

std::uint64_t bytes_needed(std::uint64_t n, DataType dtype) {
  return n * (2 * size_of(dtype) + size_of(accumulation_type(dtype)));
}

Tensor::Tensor(DataType dtype, std::uint64_t n, std::uint32_t rank)
    : gradients(gradient(dtype, n, rank)),
      values(gradients),
      residual(n * size_of(accumulation_type(dtype))) {}

std::uint64_t checksum(const std::vector<std::byte>& bytes) {
  std::uint64_t sum = mix(bytes.size());
  std::size_t at = 0;
  for (; at + sizeof sum <= bytes.size(); at += sizeof sum) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, sizeof word);
    sum = mix(sum ^ word);
  }
  for (; at < bytes.size(); ++at) {
    sum = mix(sum ^ std::to_integer<std::uint64_t>(bytes[at]));
  }
  return sum;
}

}  // namespace gtopk::programs::allreduce
