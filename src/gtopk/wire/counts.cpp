#include "src/gtopk/wire/counts.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "src/gtopk/wire/codec.hpp"
#include "src/gtopk/wire/rice.hpp"
#include "src/gtopk/wire/rice_rules.hpp"

namespace gtopk::sparse::counts {

std::size_t capacity_for(std::size_t entries, std::uint64_t ranks) {
  return rice::capacity_for(entries, entries * ranks);
}

std::size_t fewest_bytes(std::size_t entries) {
  return rice::blocks_of(entries) + rice::bytes_of(entries);
}

std::size_t encode(const std::uint32_t* counts, std::size_t entries, GrowingBuffer& scratch,
                   std::byte* out) {
  auto* const sums = scratch.array<std::uint64_t>(entries);
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < entries; ++i) {
    sum += counts[i];
    sums[i] = sum - 1;
  }
  return rice::encode(sums, entries, out);
}

void decode(std::span<const std::byte> code, std::uint32_t* counts, std::size_t entries,
            std::uint64_t ranks, GrowingBuffer& scratch) {
  auto* const sums = scratch.array<std::uint64_t>(entries);
  rice::decode(code, sums, entries, entries * ranks);
  std::uint64_t before = 0;
  std::uint64_t largest = 0;
  for (std::size_t i = 0; i < entries; ++i) {
    const std::uint64_t count = sums[i] + 1 - before;
    before += count;
    largest = std::max(largest, count);
    counts[i] = static_cast<std::uint32_t>(count);
  }
  if (largest > ranks) {
    throw Damaged(fmt::format("an entry counts {} of {} ranks", largest, ranks));
  }
}

}  // namespace gtopk::sparse::counts
