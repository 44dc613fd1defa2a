// Engine tests: what messages between two ranks are sent with.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>

#include "tests/support/calls.hpp"

namespace gtopk {

inline constexpr std::int32_t kTag = 7;
/// Bytes of a message that is not sent eagerly on most networks.
inline constexpr std::size_t kLong = 100'000;

/// Receives on rank 1 while rank 0 gives up `lost`, then sends `next`. Expects one of them, whole,
/// and `next` in any case; whether it was `given_up`.
inline bool received_though_given_up(support::InprocRanks& ranks, const support::SharedEnding& lost,
                                     const reference::Bytes& given_up,
                                     const reference::Bytes& next) {
  reference::Bytes buffer(given_up.size());
  const support::SharedEnding in = ranks.submit(1, gtopk::recv(buffer, 0, kTag));
  ranks.run_until([&] { return lost->ended; });
  const support::SharedEnding out = ranks.submit(0, gtopk::send(next, 1, kTag));
  ranks.run_until([&] { return in->ended; });
  EXPECT_TRUE(in->good()) << in->text();
  const bool whole = buffer == given_up;
  EXPECT_TRUE(whole || buffer == next);
  EXPECT_TRUE(whole || !lost->good());
  lost->ignore("a message that is received whole may have been given up or not");
  if (whole) {
    const support::SharedEnding again = ranks.submit(1, gtopk::recv(buffer, 0, kTag));
    ranks.run_all();
    EXPECT_TRUE(again->good()) << again->text();
    EXPECT_TRUE(buffer == next);
  }
  ranks.run_all();
  EXPECT_TRUE(out->good()) << out->text();
  return whole;
}

}  // namespace gtopk
