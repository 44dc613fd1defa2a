#include "src/communicator/member_card.hpp"

#include <fmt/format.h>

#include "src/transport/base/tag.hpp"
#include "src/transport/bootstrap/record.hpp"

namespace gtopk {
namespace {

/// The version comes first in every card, so that other versions are recognised. It grows with
/// every change to cards, notices or the headers of messages.
constexpr std::uint64_t kVersion = 6;

MemberCard decode(const std::string& bytes, const Presence& self, std::size_t rank) {
  bootstrap::RecordReader reader(fmt::format("group '{}': the card of rank {}", self.group, rank),
                                 bytes);
  if (const std::uint64_t version = reader.number(); version != kVersion) {
    throw Error(ErrorKind::kBootstrap,
                fmt::format("group '{}': rank {} has a card of version {}, but rank {} has one of "
                            "version {}: install the same gtopk on every host",
                            self.group, rank, version, self.rank, kVersion));
  }
  MemberCard card;
  card.identity = reader.number();
  card.id = reader.number32(transport::kMaxGroups - 1);
  card.transport = reader.field();
  card.process = reader.field();
  card.host = reader.field();
  card.dense = reader.field();
  card.refusal = reader.error();
  reader.expect_end();
  return card;
}

}  // namespace

std::string encode(const MemberCard& card) {
  std::string bytes;
  bootstrap::put(bytes, kVersion);
  bootstrap::put(bytes, card.identity);
  bootstrap::put(bytes, card.id);
  bootstrap::put(bytes, card.transport);
  bootstrap::put(bytes, card.process);
  bootstrap::put(bytes, card.host);
  bootstrap::put(bytes, card.dense);
  bootstrap::put(bytes, card.refusal);
  return bytes;
}

std::vector<MemberCard> read_cards(std::span<const std::string> cards, const Presence& self) {
  if (cards.size() != self.size) {
    throw Error(ErrorKind::kBootstrap,
                fmt::format("group '{}': the directory gave {} cards to rank {} of {}", self.group,
                            cards.size(), self.rank, self.size));
  }
  if (cards[self.rank] != self.card) {
    throw Error(ErrorKind::kBootstrap,
                fmt::format("group '{}': the directory gave rank {} ({}) another process's card "
                            "as its own: were two processes started with the same rank?",
                            self.group, self.rank, self.process));
  }
  std::vector<MemberCard> members;
  for (const std::string& card : cards) {
    members.push_back(decode(card, self, members.size()));
  }
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    if (const auto& refusal = members[rank].refusal) {
      throw Error(refusal->kind(), fmt::format("group '{}': rank {} ({}): {}", self.group, rank,
                                               members[rank].process, refusal->what()));
    }
  }
  for (std::size_t rank = 1; rank < members.size(); ++rank) {
    if (members[rank].dense != members[0].dense) {
      throw Error(ErrorKind::kMismatch,
                  fmt::format("group '{}': GTOPK_DENSE is '{}' on rank 0 ({}) and '{}' on rank {} "
                              "({}): set it to the same on all ranks",
                              self.group, members[0].dense, members[0].process, members[rank].dense,
                              rank, members[rank].process));
    }
  }
  return members;
}

}  // namespace gtopk
