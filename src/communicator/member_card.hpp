// Communicator: what a rank must know of each other one in its group, as the bytes that a directory
// carries from one to the other. It knows no directory.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gtopk/directory.hpp"
#include "gtopk/error.hpp"

namespace gtopk {

struct MemberCard {
  std::uint64_t identity = 0;    ///< of its process
  std::uint32_t id = 0;          ///< its own number of the group
  std::string transport;         ///< Transport::card()
  std::string process;           ///< "host node7, pid 4711"
  std::string host;              ///< as host_name() calls it: equal where ranks share a host
  std::optional<Error> refusal;  ///< why it cannot be in the group
};

[[nodiscard]] std::string encode(const MemberCard& card);

/// What the directory gave to `self`, by rank. Throws Error{kBootstrap} for what cannot be the
/// cards of this meeting, and the lowest rank's refusal where there is one.
[[nodiscard]] std::vector<MemberCard> read_cards(std::span<const std::string> cards,
                                                 const Presence& self);

}  // namespace gtopk
