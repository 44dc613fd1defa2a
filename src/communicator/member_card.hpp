// Communicator: what each rank must know of the others in its group, as the bytes that a directory
// exchanges. It does not depend on a directory.
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
  std::uint64_t identity = 0;    ///< identity of the rank's process
  std::uint32_t id = 0;          ///< the rank's own number for the group
  std::string transport;         ///< the result of Transport::card()
  std::string process;           ///< such as "host node7, pid 4711"
  std::string host;              ///< from host_name(): equal for ranks that share a host
  std::string dense;             ///< the rank's GTOPK_DENSE
  std::optional<Error> refusal;  ///< why the rank cannot be in the group
};

[[nodiscard]] std::string encode(const MemberCard& card);

/// Decodes the cards that the directory gave to `self`, by rank. Throws Error{kBootstrap} if they
/// cannot be this meeting's cards, the refusal of the lowest rank that has one, or
/// Error{kMismatch} if a setting differs that all ranks must share; the latter two are the same
/// error on all ranks.
[[nodiscard]] std::vector<MemberCard> read_cards(std::span<const std::string> cards,
                                                 const Presence& self);

}  // namespace gtopk
