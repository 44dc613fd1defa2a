// Collectives: which memory they take. Collectives that read or write memory take only host memory;
// collectives that only move bytes also take what the transport takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <ranges>
#include <span>
#include <string_view>
#include <vector>

#include "gtopk/buffer.hpp"
#include "gtopk/collective.hpp"

namespace gtopk::collectives {

/// Makes the collective reject memory that is not host memory.
void take_host_only(Collective& collective, Memory memory,
                    std::string_view why = "reads its elements");
/// Makes the collective reject memory that the transport does not take between this rank and
/// `other`, or any other rank.
void take_moved(Collective& collective, Memory memory,
                std::optional<std::uint32_t> other = std::nullopt);

/// The first memory that is not host memory, or host memory if there is none.
[[nodiscard]] Memory memory_of(const std::ranges::range auto& buffers, Memory first = {}) {
  for (const auto& buffer : buffers) {
    if (!first.is_host()) {
      break;
    }
    first = buffer.memory;
  }
  return first;
}

/// Returns the common type. Throws Error{kInvalidArgument} if one differs.
[[nodiscard]] DataType common_type(std::string_view name, std::span<const DataType> types);
[[nodiscard]] DataType type_of_all(std::string_view name, const std::ranges::range auto& buffers,
                                   std::optional<DataType> first = std::nullopt) {
  std::vector<DataType> types;
  if (first) {
    types.push_back(*first);
  }
  for (const auto& buffer : buffers) {
    types.push_back(buffer.dtype);
  }
  return common_type(name, types);
}

/// The buffers as bytes, in the order of the ranks.
template <class Void>
[[nodiscard]] auto bytes_of_all(const BasicBuffers<Void>& buffers) {
  std::vector<decltype(buffers[0].bytes())> bytes;
  bytes.reserve(buffers.size());
  for (const auto& buffer : buffers) {
    bytes.push_back(buffer.bytes());
  }
  return bytes;
}

/// Checks messages to or from one rank each, in rank order. Throws Error{kInvalidArgument} if the
/// transport does not take the memory of one of them.
void check_each_moved(const std::ranges::range auto& messages, std::string_view operation,
                      const GroupShape& group) {
  std::uint32_t other = 0;
  for (const auto& message : messages) {
    if (other != group.rank) {
      group.check_moved(message.memory(), operation, other);
    }
    ++other;
  }
}

/// Copies what this rank sends to itself, unless it is already there; a copy needs both in host
/// memory.
void keep(ConstBytes part, Bytes output);
/// Throws Error{kInvalidArgument} if keep() would have to copy on a device.
void check_kept(ConstBytes part, Bytes output, std::string_view operation, const GroupShape& group);

}  // namespace gtopk::collectives
