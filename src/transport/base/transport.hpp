// Transport, base: the interface of every network: tagged messages between processes. An
// implementation is one folder (ucx/); it does not know groups or algorithms.
//
// Every function except wake() is called on one thread, the engine's. No function blocks except
// wait() and close().
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "gtopk/memory.hpp"
#include "src/transport/base/clock.hpp"
#include "src/transport/base/request.hpp"
#include "src/transport/base/tag.hpp"

namespace gtopk::transport {

/// The machine and namespaces of a process, as far as known. Namespaces are inode numbers.
struct HostIdentity {
  std::string boot;  ///< the kernel's boot id, equal on one machine; empty if unknown
  std::uint64_t process_namespace = 0;
  std::uint64_t network_namespace = 0;
  std::uint64_t ipc_namespace = 0;  ///< processes in the same one can share memory
  std::uint64_t started = 0;        ///< start of the process, in clock ticks since boot
};

/// A process as other processes see it. `identity` is random and never reused, so a restarted
/// process has a new one.
struct PeerInfo {
  std::uint64_t identity = 0;
  std::string host;
  std::int64_t process = 0;  ///< the process's pid
  HostIdentity place{};
};

/// A peer's failure, detected outside any request. It is reported once per peer, or for this
/// process itself if other processes cannot reach it.
struct PeerFailure {
  PeerId peer = 0;
  std::string reason;
  /// Whether no message has ever passed between this process and the peer.
  bool never_reached = false;
  /// Finds out why a connection cannot be made; may be empty. It may be called on any thread, and
  /// takes at most 0.2 s.
  std::function<std::string()> diagnose{};
};

/// Finds addresses of peers that are known only by their card.
class AddressBook {
 public:
  AddressBook() = default;
  AddressBook(const AddressBook&) = delete;
  AddressBook& operator=(const AddressBook&) = delete;
  AddressBook(AddressBook&&) = delete;
  AddressBook& operator=(AddressBook&&) = delete;
  virtual ~AddressBook() = default;

  /// Asks for a peer's address. Called inside send() or recv(), so it must not block. The answer
  /// comes later, on the engine thread, by Transport::set_address or no_address.
  virtual void look_up(PeerId peer) = 0;
};

inline constexpr std::uint32_t kMostConnections = 64;

class Transport {
 public:
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  Transport(Transport&&) = delete;
  Transport& operator=(Transport&&) = delete;
  virtual ~Transport() = default;

  /// Describes this process.
  [[nodiscard]] virtual const PeerInfo& self() const = 0;
  /// The way to reach this process, as an opaque blob for the bootstrap.
  [[nodiscard]] virtual std::string address() const = 0;
  /// This process's identity, and the key without which it accepts no messages. The card is shorter
  /// than the address, or is the address itself if no other job can send.
  [[nodiscard]] virtual std::string card() const { return address(); }

  /// Introduces a process by its card(); the same process (including this one) always gets the same
  /// id. Ids count from 0. It does not connect yet. Throws Error{kBootstrap} for a blob that cannot
  /// be read.
  virtual PeerId add_peer(std::string_view blob) = 0;
  /// Sets the source of peers' addresses; it is asked once, when the first message needs a
  /// connection. Messages to the peer wait in order until set_address() or no_address(). Transports
  /// whose cards are addresses never ask.
  virtual void use(AddressBook* /*book*/) {}
  /// Sets the peer's address, and connects if a message waits for it. Throws Error{kBootstrap} for
  /// a blob that cannot be read or belongs to another process.
  virtual void set_address(PeerId /*peer*/, std::string_view /*blob*/) {}
  /// Completes messages that wait for the address, and receives that would connect, with
  /// kPeerFailed. The next message asks again.
  virtual void no_address(PeerId /*peer*/, const std::string& /*reason*/) {}
  /// Why the last message to the peer could not be sent at all: the reason of no_address(), or the
  /// resource that this process has run out of. The next message tries again. Empty if there was no
  /// such reason.
  [[nodiscard]] virtual std::string why_unreachable(PeerId /*peer*/) const { return {}; }
  /// Whether the peer's address is being looked up, and messages to it wait.
  [[nodiscard]] virtual bool awaits_address(PeerId /*peer*/) const { return false; }
  [[nodiscard]] virtual const PeerInfo& peer(PeerId peer) const = 0;
  /// Whether the peer's process is known to have ended; false if this process cannot see it.
  [[nodiscard]] virtual bool process_ended(PeerId /*peer*/) const { return false; }

  /// Starts one message; `request` must be prepared, and completes exactly once, possibly before
  /// the call returns. Completion of a send means that the buffer may be reused, not that the
  /// message was received. Both send() and recv() connect to the peer if it is not connected yet,
  /// so that a rank that only receives notices a dead peer. A receive whose `request.connects` is
  /// false does not connect, and may wait forever for a peer that never calls. If the peer's
  /// connection has ended, the request completes with kPeerFailed, unless it receives a message
  /// that had arrived completely before and the peer was not given up. Messages of one sender over
  /// one connection are matched with receives in the order in which they were sent. Callers rely on
  /// this for control messages: when one arrives, every earlier message of its sender over that
  /// connection has been matched or is unexpected.
  virtual void send(PeerId peer, Tag tag, ConstBytes data, Request& request) = 0;
  virtual void recv(PeerId peer, Tag tag, Bytes data, Request& request) = 0;
  /// Whether messages to and from the peer may lie in memory of this kind at this end, whatever
  /// memory the other end uses. Never changes.
  [[nodiscard]] virtual bool takes(Memory::Kind kind, PeerId /*peer*/) const {
    return kind == Memory::Kind::kHost;
  }

  /// Whether there is an endpoint to the peer that has not ended, or will be as soon as its address
  /// is found.
  [[nodiscard]] virtual bool connected(PeerId peer) const = 0;

  /// The number of connections to the peer, existing or planned; messages over one connection may
  /// overtake messages over another. The number is at most kMostConnections and may grow.
  [[nodiscard]] virtual std::uint32_t connections(PeerId /*peer*/) const { return 1; }

  /// Cancels a pending receive, which completes with kCancelled, or normally if already matched. A
  /// pending send stays until its endpoint ends. Completion may come later.
  virtual void cancel(Request& request) = 0;

  /// Closes the endpoint to `peer` by force. Each of its pending requests completes with
  /// kPeerFailed, and no failure is reported.
  virtual void give_up(PeerId peer) = 0;
  /// Whether new groups need a new transport. This is so if an endpoint has ended without a
  /// departure while its process may still be alive, because endpoints end for good, or if this
  /// side may no longer receive.
  [[nodiscard]] virtual bool spent() const = 0;
  /// From now on, a broken endpoint to `peer` is treated as an orderly departure and not reported
  /// as a failure. An endpoint that is already broken no longer counts for spent().
  virtual void expect_departure(PeerId peer) = 0;

  /// Whether there is an unexpected message with that tag.
  [[nodiscard]] virtual bool lies_there(Tag tag) = 0;
  /// Receives and drops unexpected messages that match tag under mask. Returns their number; their
  /// reception may still be in progress.
  virtual std::size_t discard(Tag tag, Tag mask) = 0;
  /// Checks every message that has arrived and matches no posted receive, and drops those for which
  /// `ours` returns false. Messages that were not sent under this process's key have random tags.
  /// Returns the number dropped.
  virtual std::size_t sift(const std::function<bool(Tag)>& ours) = 0;

  /// Moves messages and completes requests; returns whether anything happened.
  virtual bool progress() = 0;
  /// Sleeps until a message may have moved, wake() was called, or `at_most` has passed. May return
  /// early.
  virtual void wait(Duration at_most) = 0;
  /// Sleeps for `at_most` in the middle of a long message, while the kernel buffers incoming bytes.
  /// Returns at once if the sender would stall meanwhile.
  virtual void rest(Duration at_most) = 0;
  /// Makes the current or the next wait() or rest() return. Thread-safe.
  virtual void wake() = 0;

  /// Returns the failures noticed since the last call.
  [[nodiscard]] virtual std::vector<PeerFailure> take_failures() = 0;

  /// Flushes and closes every endpoint, progressing until done or until `at_most` has passed. No
  /// request may be pending.
  virtual void close(Duration at_most) = 0;

  /// The transport in one line, for logs and tools: library, version, transports in effect, device.
  [[nodiscard]] virtual std::string describe() const = 0;
};

}  // namespace gtopk::transport
