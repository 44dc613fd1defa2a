// Transport, base: what every network looks like from above: tagged messages between processes.
// An implementation is one folder (ucx/, inproc/); it knows no group and no algorithm.
//
// Everything but wake() is called on one thread, the engine's. Nothing here blocks, wait() and
// close() aside.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "src/transport/base/clock.hpp"
#include "src/transport/base/request.hpp"
#include "src/transport/base/tag.hpp"

namespace gtopk::transport {

/// Where on its machine a process runs, as far as it could find out. Namespaces are inode numbers.
struct Place {
  std::string boot;  ///< the kernel's boot id, equal on one machine; empty: nothing is known
  std::uint64_t process_namespace = 0;
  std::uint64_t network_namespace = 0;
  std::uint64_t ipc_namespace = 0;  ///< whose members can share memory
  std::uint64_t started = 0;        ///< the process, in clock ticks after boot
};

/// A process as others see it. `identity` is random and never reused, so a process that starts
/// again is another.
struct PeerInfo {
  std::uint64_t identity = 0;
  std::string host;
  std::int64_t process = 0;  ///< its pid
  Place place{};
};

/// The transport found out, outside any request, that a peer is gone. Reported once per peer.
struct PeerFailure {
  PeerId peer = 0;
  std::string reason;
};

/// Who finds addresses of peers that are known by their card alone.
class AddressBook {
 public:
  AddressBook() = default;
  AddressBook(const AddressBook&) = delete;
  AddressBook& operator=(const AddressBook&) = delete;
  AddressBook(AddressBook&&) = delete;
  AddressBook& operator=(AddressBook&&) = delete;
  virtual ~AddressBook() = default;

  /// Called inside send() or recv(), and must not block. It is answered later, on the engine's
  /// thread, by Transport::set_address or no_address.
  virtual void look_up(PeerId peer) = 0;
};

class Transport {
 public:
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  Transport(Transport&&) = delete;
  Transport& operator=(Transport&&) = delete;
  virtual ~Transport() = default;

  /// This process.
  [[nodiscard]] virtual const PeerInfo& self() const = 0;
  /// How to reach this process: an opaque blob for the bootstrap.
  [[nodiscard]] virtual std::string address() const = 0;
  /// Who this process is, and the key without which it takes nobody's messages. Shorter than the
  /// address, or the address itself where nobody else can send.
  [[nodiscard]] virtual std::string card() const { return address(); }

  /// Makes a process known by its card(); the same process (this one too) always gets the same id.
  /// Does not connect yet. Throws Error{kBootstrap} for a blob that it cannot read.
  virtual PeerId add_peer(std::string_view blob) = 0;
  /// Whom to ask for the address of a peer, once, when the first message is to connect to it.
  /// Messages to it wait in order until set_address() or no_address(). Transports whose cards are
  /// addresses never ask.
  virtual void use(AddressBook* /*book*/) {}
  /// Asks for the peer's address, if that is not known, before there is a message for it.
  virtual void prepare(PeerId /*peer*/) {}
  /// Connects where a message waits for it. Throws Error{kBootstrap} for a blob that it cannot
  /// read, or that is another process's.
  virtual void set_address(PeerId /*peer*/, std::string_view /*blob*/) {}
  /// The messages that wait for the address, and receives that would connect, complete with
  /// kPeerFailed; the next one asks again.
  virtual void no_address(PeerId /*peer*/, const std::string& /*reason*/) {}
  /// What no_address() said last; empty when the peer's address is known or was not asked for.
  [[nodiscard]] virtual std::string why_unreachable(PeerId /*peer*/) const { return {}; }
  [[nodiscard]] virtual const PeerInfo& peer(PeerId peer) const = 0;

  /// Starts one message; `request` has been prepared and completes exactly once, perhaps before the
  /// call returns. Completion of a send means that the buffer may be reused, not that the message
  /// was received. Both connect to the peer if that has not happened, so that a dead peer is
  /// noticed by a rank that only receives; a receive with `request.connects` false does not (it may
  /// wait for ever for somebody who never calls). On a failed peer the request completes with
  /// kPeerFailed. Messages of one sender are matched with receives in the order in which they were
  /// sent; of a control message this is relied upon: when one arrives, every message that its
  /// sender sent before has found its receive or lies there unexpected.
  virtual void send(PeerId peer, Tag tag, const void* data, std::size_t bytes,
                    Request& request) = 0;
  virtual void recv(PeerId peer, Tag tag, void* data, std::size_t bytes, Request& request) = 0;

  /// Whether an endpoint to the peer has been made, or will be as soon as its address is found (and
  /// has not ended).
  [[nodiscard]] virtual bool connected(PeerId peer) const = 0;

  /// Withdraws a pending receive: it completes with kCancelled, or as it was if it is already
  /// matched. A pending send stays until its endpoint ends. Completion may come later.
  virtual void cancel(Request& request) = 0;

  /// Ends the endpoint to `peer` by force: each of its pending requests completes (kPeerFailed); no
  /// failure is reported.
  virtual void give_up(PeerId peer) = 0;
  /// From here on a broken endpoint to `peer` is its ordinary departure, not a failure to report.
  virtual void expect_departure(PeerId peer) = 0;

  /// Whether a message with that tag has arrived for which no receive is posted.
  [[nodiscard]] virtual bool lies_there(Tag tag) = 0;
  /// Receives and drops messages that have arrived, match no posted receive, and fit tag under
  /// mask. Returns how many it took up; their reception may still be under way.
  virtual std::size_t discard(Tag tag, Tag mask) = 0;
  /// Looks at every message that has arrived and matches no posted receive, and drops those that
  /// `ours` does not know: those that were not sent under this process's key have tags at random.
  /// Returns how many.
  virtual std::size_t sift(const std::function<bool(Tag)>& ours) = 0;

  /// Moves messages and completes requests; true when anything happened.
  virtual bool progress() = 0;
  /// Sleeps until a message may have moved, wake() was called, or `at_most` has passed. May return
  /// early.
  virtual void wait(Duration at_most) = 0;
  /// In the middle of long messages: lets bytes gather for `at_most`, where the kernel keeps them
  /// meanwhile. Returns at once where looking away stops the sender.
  virtual void rest(Duration at_most) = 0;
  /// Any thread: makes a present or the next wait() or rest() return.
  virtual void wake() = 0;

  /// Failures noticed since the last call.
  [[nodiscard]] virtual std::vector<PeerFailure> take_failures() = 0;

  /// Flushes and closes every endpoint, progressing until done or until `at_most` has passed. No
  /// request may be pending.
  virtual void close(Duration at_most) = 0;

  /// One line for logs and tools: library, version, transports in effect, device.
  [[nodiscard]] virtual std::string describe() const = 0;
};

}  // namespace gtopk::transport
