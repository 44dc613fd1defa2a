#include "src/engine/stale_messages.hpp"

#include <algorithm>

namespace gtopk::engine {
namespace {

using transport::TagKind;
using transport::TimePoint;

/// Tags hold 16 bits of a sequence number, so stop looking well before it repeats.
constexpr std::uint64_t kSequences = 32768;
constexpr transport::Tag kEveryBit = ~transport::Tag{0};

}  // namespace

bool StaleMessages::has(Kind kind, std::uint32_t group, std::uint64_t number) const {
  return std::ranges::any_of(entries_, [&](const Entry& entry) {
    return entry.kind == kind && entry.group == group && entry.number == number;
  });
}

bool StaleMessages::has_collective(std::uint32_t group, std::uint64_t sequence) const {
  return has(Kind::kGroup, group, 0) || has(Kind::kCollective, group, sequence);
}

bool StaleMessages::has_payload(std::uint32_t group, transport::Tag tag) const {
  return has(Kind::kGroup, group, 0) || has(Kind::kPayload, group, tag);
}

void StaleMessages::add(Entry entry) {
  if (!has(entry.kind, entry.group, entry.number)) {
    entries_.push_back(entry);
  }
  due_ = true;  // it may already have arrived
}

void StaleMessages::add_group(std::uint32_t group, TimePoint now) {
  if (!has(Kind::kGroup, group, 0)) {
    forget_group(group);  // the group's entry covers this message
  }
  add({Kind::kGroup, group, 0, now + kBound});
}

void StaleMessages::add_collective(std::uint32_t group, std::uint64_t sequence, TimePoint now) {
  if (!has(Kind::kGroup, group, 0)) {
    add({Kind::kCollective, group, sequence, now + kBound});
  }
}

void StaleMessages::add_payload(std::uint32_t group, transport::Tag tag, TimePoint now) {
  if (!has(Kind::kGroup, group, 0)) {
    add({Kind::kPayload, group, tag, now + kBound});
  }
}

void StaleMessages::discard_group(std::uint32_t group) {
  for (const TagKind kind : {TagKind::kCollective, TagKind::kPointToPoint, TagKind::kPayload}) {
    static_cast<void>(
        transport_.discard(transport::group_tag(kind, group), transport::group_mask()));
  }
}

void StaleMessages::forget_group(std::uint32_t group) {
  std::erase_if(entries_, [&](const Entry& entry) { return entry.group == group; });
}

void StaleMessages::sweep(TimePoint now,
                          const std::function<std::uint64_t(std::uint32_t)>& arrived) {
  std::erase_if(entries_, [&](const Entry& entry) {
    return now >= entry.until ||
           (entry.kind == Kind::kCollective && arrived(entry.group) >= entry.number + kSequences);
  });
  if (now < next_sweep()) {
    return;
  }
  due_ = false;
  swept_ = now;
  for (const Entry& entry : entries_) {
    switch (entry.kind) {
      case Kind::kGroup:
        discard_group(entry.group);
        break;
      case Kind::kCollective:
        static_cast<void>(
            transport_.discard(transport::collective_tag(entry.group, 0, entry.number, 0),
                               transport::any_source_mask()));
        break;
      case Kind::kPayload:
        static_cast<void>(transport_.discard(entry.number, kEveryBit));
        break;
    }
  }
}

}  // namespace gtopk::engine
