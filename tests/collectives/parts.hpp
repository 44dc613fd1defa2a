// Test support: parts of many sizes, equal and unequal, some of them empty.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gtopk/buffer.hpp"
#include "gtopk/collectives.hpp"
#include "gtopk/types.hpp"
#include "tests/reference/reference.hpp"
#include "tests/support/calls.hpp"

namespace gtopk::test {

using Sizes = std::vector<std::uint64_t>;

inline transport::inproc::FabricOptions network(std::uint64_t seed) {
  return support::network(seed, std::chrono::microseconds(seed / 4 % 2 * 50));
}

inline std::uint64_t before(const Sizes& sizes, std::uint32_t part) {
  std::uint64_t sum = 0;
  for (std::uint32_t i = 0; i < part; ++i) {
    sum += sizes[i];
  }
  return sum;
}

inline std::uint64_t total(const Sizes& sizes) {
  return before(sizes, static_cast<std::uint32_t>(sizes.size()));
}

/// Sizes about `mean`: equal ones, then unequal ones with empty parts in between.
inline std::vector<Sizes> layouts(std::uint32_t ranks, std::uint64_t mean) {
  Sizes uneven;
  for (std::uint32_t part = 0; part < ranks; ++part) {
    uneven.push_back(part % 3 == 1 ? 0 : mean / (1 + part % 2) + std::uint64_t{5} * part);
  }
  Sizes last_alone(ranks - 1, 0);
  last_alone.push_back(mean * ranks);
  return {Sizes(ranks, mean), uneven, last_alone};
}

inline Buffers buffers(reference::Bytes& bytes, const Sizes& sizes, DataType type) {
  Buffers parts;
  for (std::uint32_t part = 0; part < sizes.size(); ++part) {
    parts.push_back({bytes.data() + before(sizes, part) * size_of(type), sizes[part], type});
  }
  return parts;
}

inline void expect_good(const std::vector<support::SharedEnding>& endings) {
  for (const auto& ending : endings) {
    ASSERT_TRUE(ending->good()) << ending->text();
  }
}

inline std::vector<std::span<std::byte>> spans(reference::Bytes& bytes, const Sizes& sizes) {
  std::vector<std::span<std::byte>> parts;
  for (std::uint32_t part = 0; part < sizes.size(); ++part) {
    parts.push_back(std::span(bytes).subspan(before(sizes, part), sizes[part]));
  }
  return parts;
}

inline std::vector<std::span<const std::byte>> constant(
    const std::vector<std::span<std::byte>>& spans) {
  return {spans.begin(), spans.end()};
}

/// Gathers parts of those sizes in bytes on ranks with those hosts, and looks at every rank's.
inline void expect_all_gather(const Sizes& sizes, const std::vector<std::string>& hosts = {}) {
  const auto size = static_cast<std::uint32_t>(sizes.size());
  reference::Bytes expected(total(sizes));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    expected[i] = static_cast<std::byte>(i * 7 + i / 256);
  }
  std::vector<reference::Bytes> data(size, reference::Bytes(expected.size()));
  support::InprocRanks ranks(size, network(total(sizes)), hosts);
  expect_good(ranks.run([&](std::uint32_t rank) {
    const auto outputs = spans(data[rank], sizes);
    std::copy_n(expected.begin() + static_cast<std::ptrdiff_t>(before(sizes, rank)), sizes[rank],
                outputs[rank].begin());
    return gtopk::all_gather(outputs);
  }));
  for (const reference::Bytes& bytes : data) {
    ASSERT_TRUE(bytes == expected);
  }
  ASSERT_TRUE(ranks.close().empty());
}

}  // namespace gtopk::test
