#include "src/engine/flow_control.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "gtopk/error.hpp"
#include "src/engine/operation.hpp"

namespace gtopk::engine {
namespace {

using transport::PeerId;
using transport::Status;

constexpr std::uint64_t cost_of(std::uint64_t bytes) { return FlowControl::kPerMessage + bytes; }

/// Whether the message's operation has failed.
bool is_withdrawn(const MessageSlot& slot) {
  const Operation& operation = *slot.operation;
  return operation.cause().has_value() || operation.state == Operation::State::kLingering;
}

}  // namespace

std::uint64_t FlowControl::charge(Group& group, std::uint32_t to, std::uint64_t bytes) const {
  std::uint64_t& ahead = group.credits[to].ahead;
  const std::uint64_t cost = cost_of(bytes);
  const bool fits = ahead == 0 ? window_ != 0 : cost <= window_ && ahead <= window_ - cost;
  if (!fits) {
    return 0;
  }
  ahead += cost;
  return cost;
}

void FlowControl::returned(Group& group, std::uint32_t by, std::uint64_t bytes) {
  std::uint64_t& ahead = group.credits[by].ahead;
  ahead -= std::min(ahead, bytes);
  // The receiver seems to receive the messages in this order.
  const auto is_for_it = [&](AllHeld::iterator held) {
    return held != held_.end() && std::get<0>(held->first) == &group &&
           std::get<1>(held->first) == by;
  };
  for (auto next = held_.lower_bound({&group, by, 0}); is_for_it(next);) {
    const auto held = next++;
    if (is_withdrawn(*held->second.slot)) {
      continue;  // the receiver decides what happens to it
    }
    const std::uint64_t cost = charge(group, by, held->second.payload.size());
    if (cost == 0) {
      return;
    }
    held->second.slot->operation->transfer->ahead = cost;
    post(held);
  }
}

void FlowControl::post(AllHeld::iterator entry) {
  const Held held = entry->second;
  held_.erase(entry);
  held.slot->operation->post_held(*held.slot, held.tag, held.payload);
}

void FlowControl::matched(Group& group, std::uint32_t from, std::uint64_t bytes,
                          std::uint64_t window) {
  owe(group, from, cost_of(bytes), window);
}

void FlowControl::owe(Group& group, std::uint32_t from, std::uint64_t bytes, std::uint64_t window) {
  std::uint64_t& matched = group.credits[from].matched;
  matched += bytes;
  if (window == 0 || matched < window / 2) {
    return;
  }
  flush();
  const std::uint64_t credit = std::exchange(matched, 0);
  if (from == group.rank()) {
    returned(group, from, credit);
  } else if (!membership_.has_left(group.peer(from))) {
    membership_.tell(group, from, {NoticeKind::kCredit, ErrorKind::kAborted, 0, credit, {}});
  }
}

void FlowControl::hold(MessageSlot& slot, std::uint32_t serial, transport::Tag tag,
                       ConstBytes payload) {
  held_.emplace(Key{&slot.operation->group(), slot.rank, serial}, Held{&slot, tag, payload});
}

void FlowControl::clear(const std::shared_ptr<Group>& group, std::uint32_t from,
                        std::uint32_t serial) {
  if (from == group->rank()) {
    cleared(*group, from, serial);
    return;
  }
  if (membership_.has_left(group->peer(from))) {
    return;  // the receive ends, too
  }
  const bool joins = clearances_.group == group && clearances_.sender == from &&
                     clearances_.serials.size() + sizeof serial <= Notice::kMaxText;
  if (!joins) {
    flush();
    clearances_.group = group;
    clearances_.sender = from;
  }
  const auto bytes = std::bit_cast<std::array<char, sizeof serial>>(serial);
  clearances_.serials.append(bytes.data(), bytes.size());
}

void FlowControl::flush() {
  if (clearances_.group == nullptr) {
    return;
  }
  membership_.tell(*clearances_.group, clearances_.sender,
                   {NoticeKind::kClear, ErrorKind::kAborted, 0, 0, clearances_.serials});
  clearances_.group.reset();
  clearances_.serials.clear();
}

void FlowControl::handle(Group& group, std::uint32_t from, const Notice& notice) {
  if (notice.kind == NoticeKind::kCredit) {
    returned(group, from, notice.sequence);
  } else if (notice.kind == NoticeKind::kUnmatched) {
    drop(group, from, static_cast<std::uint32_t>(notice.sequence));
  } else {
    std::uint32_t serial = 0;
    for (std::size_t at = 0; at + sizeof serial <= notice.text.size(); at += sizeof serial) {
      std::memcpy(&serial, notice.text.data() + at, sizeof serial);
      cleared(group, from, serial);
    }
  }
}

void FlowControl::cleared(Group& group, std::uint32_t by, std::uint32_t serial) {
  const auto held = held_.find({&group, by, serial});
  if (held == held_.end()) {
    return;  // the message has been sent, or dropped with its group or its receiver's connection
  }
  group.credits[by].ahead += cost_of(held->second.payload.size());  // it now counts as sent ahead
  post(held);
}

void FlowControl::end(const Held& held, Status status, bool deserted) {
  held.slot->deserted = deserted;
  held.slot->request.complete(status, 0);
}

void FlowControl::drop(Group& group, std::uint32_t to, std::uint32_t serial) {
  const auto entry = held_.find({&group, to, serial});
  if (entry != held_.end()) {
    const Held held = entry->second;
    held_.erase(entry);
    group.credits[to].ahead += kPerMessage;
    held.slot->operation->transfer->ahead = kPerMessage;
    end(held, Status::kCancelled);
  }
}

void FlowControl::ended(Operation& operation, const transport::Request& request) {
  const bool is_header = operation.transfer && !request.is_receive &&
                         transport::kind_of(request.tag) == transport::TagKind::kPointToPoint;
  if (is_header && request.status() == Status::kOk) {
    operation.transfer->left = true;
  } else if (is_header) {
    never_left(operation);
  }
}

void FlowControl::never_left(Operation& operation) {
  const Transfer lost = *std::exchange(operation.transfer, std::nullopt);
  const auto entry = held_.find({&operation.group(), lost.to, lost.serial});
  if (entry != held_.end()) {
    const Held held = entry->second;
    held_.erase(entry);
    end(held, Status::kCancelled);
  }
  if (lost.ahead != 0) {
    lost_.push_back({operation.shared_group(), lost.to, lost.ahead});
  }
}

bool FlowControl::settle() {
  const auto lost = std::exchange(lost_, {});
  for (const Lost& each : lost) {
    returned(*each.group, each.to, each.ahead);
  }
  return !lost.empty();
}

template <class Matches>
void FlowControl::end_those(Matches matches, Status status, bool deserted) {
  std::erase_if(held_, [&](const auto& entry) {
    const auto& [group, to, serial] = entry.first;
    const bool ends = matches(*group, to);
    if (ends) {
      end(entry.second, status, deserted);
    }
    return ends;
  });
}

void FlowControl::drop_group(const Group& group) {
  end_those([&](const Group& its, std::uint32_t) { return &its == &group; }, Status::kCancelled,
            false);
}

void FlowControl::drop_peer(PeerId peer) {
  end_those([&](const Group& its, std::uint32_t to) { return its.peer(to) == peer; },
            Status::kPeerFailed, false);
}

void FlowControl::peer_left(PeerId peer) {
  end_those([&](const Group& its, std::uint32_t to) { return its.peer(to) == peer; },
            Status::kCancelled, true);
}

std::uint64_t send_window_of_environment() {
  const char* const variable = std::getenv("GTOPK_SEND_WINDOW");
  if (variable == nullptr) {
    return FlowControl::kDefaultWindow;
  }
  const std::string_view text = variable;
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  constexpr std::string_view kUnits = "KMG";
  const std::size_t power = unit.empty() ? 0 : kUnits.find(unit.front()) + 1;
  const bool known = unit.empty() || (unit.size() == 1 && power != 0);
  constexpr std::uint64_t kMost = std::uint64_t{1} << 40U;
  if (error != std::errc{} || !known || number > kMost >> (10 * power)) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("GTOPK_SEND_WINDOW is '{}': expected a number of bytes, at most 1024G, "
                            "such as 0, 65536, 512K or {}M",
                            text, FlowControl::kDefaultWindow >> 20U));
  }
  return number << (10 * power);
}

}  // namespace gtopk::engine
