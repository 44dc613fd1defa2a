// Engine: how far point-to-point messages may run ahead of their receives.
//
// A message that is sent before a receive has matched it occupies the receiver's memory. So each
// member of a group has a window of bytes at each other member. A message that fits is sent at
// once, and counts until a receive matches it; the receiver returns matched bytes, in one notice
// per half a window. If a message does not fit, only its header is sent, which fixes its place in
// the order. The payload is held in the sender's memory until it fits, or until a receive has
// matched the header and clears it. So a full window delays no other message, whatever its tag.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "gtopk/memory.hpp"
#include "src/engine/group.hpp"
#include "src/engine/membership.hpp"
#include "src/engine/message_slots.hpp"
#include "src/engine/notice.hpp"
#include "src/transport/base/request.hpp"
#include "src/transport/base/status.hpp"
#include "src/transport/base/tag.hpp"

namespace gtopk::engine {

class FlowControl {
 public:
  static constexpr std::uint64_t kDefaultWindow = std::uint64_t{16} << 20U;
  /// The bytes that a message counts in addition to its payload, for what the receiver's network
  /// layer keeps for it.
  static constexpr std::uint64_t kPerMessage = 1024;

  explicit FlowControl(Membership& membership) : membership_(membership) {}

  /// Sets the window for messages from this process to each member of each group. With 0, nothing
  /// is sent ahead.
  void set_window(std::uint64_t bytes) { window_ = bytes; }
  [[nodiscard]] std::uint64_t window() const { return window_; }

  // The following are used by a sender.
  /// Returns the bytes that such a message counts from now on, or 0 if it may not be sent ahead.
  /// One message of any length may be sent if nothing else is ahead of its receive.
  [[nodiscard]] std::uint64_t charge(Group& group, std::uint32_t to, std::uint64_t bytes) const;
  /// Holds that message of the slot's operation, to be posted later. The slot is pending from now
  /// on.
  void hold(MessageSlot& slot, std::uint32_t serial, transport::Tag tag, ConstBytes payload);
  [[nodiscard]] bool holds(const Group& group, std::uint32_t to, std::uint32_t serial) const {
    return held_.contains({&group, to, serial});
  }
  /// A request of the operation has ended. If it was the header of its message and was not sent,
  /// the message has never left.
  void ended(Operation& operation, const transport::Request& request);
  /// Must be called if the receiver will never hear of the operation's message; a held message ends
  /// here. Its bytes are returned in settle(), because requests may end inside the transport.
  void never_left(Operation& operation);
  /// Returns the bytes of messages that never left; the result tells whether there were any.
  bool settle();
  /// Ends a held message that was withdrawn; its header counts until a receive skips it.
  void drop(Group& group, std::uint32_t to, std::uint32_t serial);
  /// Stops counting these bytes, which receives have matched or the receiver discards.
  void returned(Group& group, std::uint32_t by, std::uint64_t bytes);
  /// Does the same for all messages of a group that has failed.
  void drop_group(const Group& group);
  /// Drops messages held for a peer that will clear nothing more because its connection has ended.
  void drop_peer(transport::PeerId peer);
  /// Does the same for a peer that has left in order; the operations' errors then name this as the
  /// cause.
  void peer_left(transport::PeerId peer);
  [[nodiscard]] std::size_t held() const { return held_.size(); }

  // The following are used by a receiver.
  /// Must be called when a receive has matched or skipped a message of a sender with that window,
  /// or with kUnknownWindow. If the message is held, call this after clear(), so that the sender
  /// already counts it.
  static constexpr std::uint64_t kUnknownWindow = 1;
  void matched(Group& group, std::uint32_t from, std::uint64_t bytes, std::uint64_t window);
  /// Must be called if no receive will match the payload of a withdrawn message that was sent
  /// separately from its header. The header counts until a receive skips it.
  void discarded(Group& group, std::uint32_t from, std::uint64_t bytes) {
    owe(group, from, bytes, kUnknownWindow);
  }
  /// Must be called when a receive has matched the header of a held message and awaits its payload.
  void clear(const std::shared_ptr<Group>& group, std::uint32_t from, std::uint32_t serial);
  /// Sends clearances that were held back to be sent together.
  void flush();

  [[nodiscard]] static bool takes(NoticeKind kind) {
    return kind == NoticeKind::kClear || kind == NoticeKind::kCredit ||
           kind == NoticeKind::kUnmatched;
  }
  void handle(Group& group, std::uint32_t from, const Notice& notice);

 private:
  struct Held {
    MessageSlot* slot;
    transport::Tag tag;
    ConstBytes payload;
  };
  /// The bytes of a message that never left.
  struct Lost {
    std::shared_ptr<Group> group;
    std::uint32_t to = 0;
    std::uint64_t ahead = 0;
  };
  /// Messages of one sender that are cleared in the same step.
  struct Clearances {
    std::shared_ptr<Group> group;
    std::uint32_t sender = 0;
    std::string serials;  ///< as encoded in a notice
  };

  /// The message's group, receiver and serial number.
  using Key = std::tuple<const Group*, std::uint32_t, std::uint32_t>;
  using AllHeld = std::map<Key, Held>;

  /// Returns bytes to the sender, together with others due, once they are half its window.
  void owe(Group& group, std::uint32_t from, std::uint64_t bytes, std::uint64_t window);
  void cleared(Group& group, std::uint32_t by, std::uint32_t serial);
  void post(AllHeld::iterator held);
  static void end(const Held& held, transport::Status status, bool deserted = false);
  template <class Matches>
  void end_those(Matches matches, transport::Status status, bool deserted);

  Membership& membership_;
  std::uint64_t window_ = kDefaultWindow;
  AllHeld held_;  ///< messages for one receiver are in call order
  Clearances clearances_;
  std::vector<Lost> lost_;
};

/// Returns GTOPK_SEND_WINDOW, or the default. Throws Error{kInvalidArgument} if it is not a number
/// of bytes.
[[nodiscard]] std::uint64_t send_window_of_environment();

}  // namespace gtopk::engine
