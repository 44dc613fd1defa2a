// Transport, inproc: P simulated processes. Ports in one thread, connected by a seeded scheduler
// with virtual time: the same seed and the same calls give the same run, so a test that failed
// fails again. It knows no group and no algorithm.
//
//   Fabric fabric(4, {.seed = 7});
//   ... each rank sends and receives on fabric.port(rank) ...
//   while (!done()) {
//     if (!fabric.deliver_one() && !fabric.advance_to_next()) ...;  // nothing left to happen
//     ... progress() a rank chosen by fabric.pick(4) ...
//   }
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "src/transport/base/clock.hpp"
#include "src/transport/base/tag.hpp"
#include "src/transport/base/transport.hpp"
#include "tests/transport/inproc/event.hpp"
#include "tests/transport/inproc/seen.hpp"

namespace gtopk::transport::inproc {

class Port;

struct FabricOptions {
  std::uint64_t seed = 1;
  /// Messages of fewer bytes are copied and complete inside send(); the others stay pending until
  /// their receiver has matched them. 0: all wait. SIZE_MAX: none does.
  std::size_t eager_below = 1024;
  /// Every event takes a time drawn between these two.
  Duration min_delay{};
  Duration max_delay{};
  /// From a peer's death to the notice of it.
  Duration failure_delay = std::chrono::milliseconds(20);
  /// Deliver in any order that tags allow (messages of one sender, receiver, connection and tag
  /// keep theirs, and a control message overtakes none of its connection); else in the order in
  /// which they were sent.
  bool reorder = true;
  /// From each rank to each other.
  std::uint32_t connections = 1;
  /// Whether ports take memory of a device's, which must be the host's all the same.
  bool takes_devices = false;
};

/// Whether the network finds out that a process died: TCP does, shared memory does not.
enum class Death : std::uint8_t { kNoticed, kSilent };

struct Traffic {
  std::uint64_t messages_sent = 0;
  std::uint64_t bytes_sent = 0;
  std::uint64_t messages_received = 0;  ///< that a receive took, whole or truncated
  std::uint64_t bytes_received = 0;
};

/// Exact, and still there when the port is gone.
struct PortCounters {
  std::array<Traffic, kTagKinds> by_kind;                    ///< indexed by TagKind
  std::array<std::uint64_t, kMostConnections> bytes_over{};  ///< sent over each connection
  std::uint64_t on_devices = 0;    ///< messages sent from, or received into, a device's memory
  std::uint64_t discarded = 0;     ///< messages taken by discard()
  std::uint64_t discards = 0;      ///< calls of it
  std::uint64_t wrong_source = 0;  ///< receives whose message came from another peer than they name
  std::uint64_t arrived_after_close = 0;  ///< messages that found the port closed
  std::vector<Tag> unexpected_at_close;   ///< messages that had arrived and nobody received

  [[nodiscard]] const Traffic& of(TagKind kind) const {
    return by_kind.at(static_cast<std::size_t>(kind));
  }
};

class Fabric {
 public:
  explicit Fabric(std::uint32_t ranks, FabricOptions options = {});
  Fabric(const Fabric&) = delete;
  Fabric& operator=(const Fabric&) = delete;
  Fabric(Fabric&&) = delete;
  Fabric& operator=(Fabric&&) = delete;
  ~Fabric();

  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(seats_.size()); }
  [[nodiscard]] const FabricOptions& options() const { return options_; }
  [[nodiscard]] const Clock& clock() const { return clock_; }

  /// The transport of one rank. Valid until the fabric goes, or until take_port's holder lets it
  /// go.
  [[nodiscard]] Transport& port(std::uint32_t rank);
  /// The same, with its ownership: for what owns its transport. The fabric must outlive it. Once
  /// per rank.
  [[nodiscard]] std::unique_ptr<Transport> take_port(std::uint32_t rank);
  [[nodiscard]] const PortCounters& counters(std::uint32_t rank) const {
    return seats_.at(rank).counters;
  }

  // Scheduling.
  /// Hands one event, drawn from those that may arrive now, to its port, whose next progress() acts
  /// on it. False when there is none at this time.
  bool deliver_one();
  /// Virtual time passes; nothing is delivered by that.
  void advance(Duration by) { clock_.time += by; }
  /// To the next time at which something may arrive; false when nothing is under way to a running
  /// rank.
  bool advance_to_next();
  /// Nothing under way, and nothing that a running port has not acted on.
  [[nodiscard]] bool quiet() const;
  /// 0 … below - 1, from the fabric's seed: for every choice a test makes.
  [[nodiscard]] std::uint64_t pick(std::uint64_t below) { return random_() % below; }

  // Faults.
  /// Asked for every message when it is sent.
  void set_faults(std::function<Fault(const Sent&)> rule) { rule_ = std::move(rule); }
  /// SIGKILL. What the rank had sent may still arrive or not; then, if it is noticed, each
  /// connected peer's port fails its requests and reports it. Every request of the rank itself ends
  /// with kPeerFailed in progress().
  void kill(std::uint32_t rank, Death death = Death::kNoticed);
  /// From now on others see that its process has ended, as on one host.
  void show_end(std::uint32_t rank) { shown_ends_.insert(rank); }
  [[nodiscard]] bool shows_end(std::uint32_t rank) const { return shown_ends_.contains(rank); }
  /// SIGSTOP: nothing is delivered to the rank and its progress() does nothing; nobody is told.
  void freeze(std::uint32_t rank) { seats_.at(rank).frozen = true; }
  /// SIGCONT.
  void thaw(std::uint32_t rank) { seats_.at(rank).frozen = false; }

 private:
  friend class Port;

  struct VirtualClock final : Clock {
    [[nodiscard]] TimePoint now() const override { return time; }
    TimePoint time{};
  };

  enum class Presence : std::uint8_t { kPresent, kClosed, kDead, kSilentlyDead };

  struct Seat {
    PeerInfo info;
    std::unique_ptr<Port> owned;
    Port* port = nullptr;  ///< null once its holder let it go
    bool frozen = false;
    Presence presence = Presence::kPresent;
    PortCounters counters;
  };

  // For Port.
  [[nodiscard]] std::uint64_t new_message() { return messages_++; }
  [[nodiscard]] Fault fault_of(const Sent& sent) const { return rule_ ? rule_(sent) : Fault{}; }
  void post(Event event);
  /// The notice at `destination` that `source` is gone.
  void post_end(std::uint32_t source, std::uint32_t destination, bool last, std::string reason,
                Duration delay);
  void connected(std::uint32_t from, std::uint32_t to);
  void closed(std::uint32_t rank);
  void left(std::uint32_t rank);
  void pass_time(std::uint32_t waiting, Duration at_most);

  [[nodiscard]] bool running(const Seat& seat) const {
    return seat.presence != Presence::kDead && seat.presence != Presence::kSilentlyDead &&
           !seat.frozen;
  }
  /// What may arrive next, now or at any time. Valid until the next call.
  [[nodiscard]] const std::vector<std::deque<Event>::iterator>& candidates(bool at_any_time);
  void forget(std::uint32_t rank);

  FabricOptions options_;
  VirtualClock clock_;
  std::mt19937_64 random_;
  std::uint64_t messages_ = 0;
  std::set<std::uint32_t> shown_ends_;
  std::function<Fault(const Sent&)> rule_;
  std::deque<Event> under_way_;  ///< in the order in which they were posted
  std::vector<std::deque<Event>::iterator> candidates_;
  Seen streams_, pairs_, pairs_with_messages_;
  std::deque<Seat> seats_;
};

}  // namespace gtopk::transport::inproc
