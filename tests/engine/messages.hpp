// Engine tests: what messages between two ranks are sent with.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gtopk {

inline constexpr std::int32_t kTag = 7;
/// Bytes of a message that is not sent eagerly on most networks.
inline constexpr std::size_t kLong = 100'000;

}  // namespace gtopk
