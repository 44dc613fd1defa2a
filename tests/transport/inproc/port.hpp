// Transport, inproc: one rank's end of a fabric: matching by tag, eager and rendezvous, endpoints
// and their end. It behaves as UCX does where the difference matters to callers; when something
// arrives is the fabric's business.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/transport/base/transport.hpp"
#include "tests/transport/inproc/event.hpp"
#include "tests/transport/inproc/fabric.hpp"

namespace gtopk::transport::inproc {

class Port final : public Transport {
 public:
  Port(Fabric& fabric, std::uint32_t rank) : fabric_(fabric), rank_(rank) {}
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;
  Port(Port&&) = delete;
  Port& operator=(Port&&) = delete;
  ~Port() override { fabric_.left(rank_); }

  [[nodiscard]] const PeerInfo& self() const override { return seat().info; }
  [[nodiscard]] std::string address() const override;
  PeerId add_peer(std::string_view address) override;
  [[nodiscard]] bool connected(PeerId peer) const override {
    return peers_.at(peer).connected && !peers_.at(peer).ended;
  }
  [[nodiscard]] std::uint32_t connections(PeerId /*peer*/) const override {
    return fabric_.options().connections;
  }
  [[nodiscard]] bool takes(Memory::Kind kind, PeerId /*peer*/) const override {
    return kind == Memory::Kind::kHost || fabric_.options().takes_devices;
  }
  [[nodiscard]] const PeerInfo& peer(PeerId peer) const override;
  [[nodiscard]] bool process_ended(PeerId peer) const override {
    return fabric_.shows_end(peers_.at(peer).rank);
  }

  void send(PeerId peer, Tag tag, ConstBytes data, Request& request) override;
  void recv(PeerId peer, Tag tag, Bytes data, Request& request) override;
  void cancel(Request& request) override;
  void give_up(PeerId peer) override;
  [[nodiscard]] bool spent() const override;
  void expect_departure(PeerId peer) override { peers_.at(peer).departure_expected = true; }
  [[nodiscard]] bool lies_there(Tag tag) override { return unexpected_.contains(tag); }
  std::size_t discard(Tag tag, Tag mask) override;
  std::size_t sift(const std::function<bool(Tag)>& ours) override;
  bool progress() override;
  void wait(Duration at_most) override;
  void rest(Duration /*at_most*/) override {}
  void wake() override { woken_.store(true, std::memory_order_release); }
  [[nodiscard]] std::vector<PeerFailure> take_failures() override {
    return std::exchange(failures_, {});
  }
  void close(Duration at_most) override;
  [[nodiscard]] std::string describe() const override;

  // For the fabric.
  void arrive(Event event) { inbox_.push_back(std::move(event)); }
  [[nodiscard]] bool has_work() const { return !inbox_.empty() || !endings_.empty(); }
  [[nodiscard]] bool is_connected_to(std::uint32_t rank) const;
  /// The process is dead: its requests end, and its memory is not read again.
  void cut_off();

 private:
  struct Peer {
    std::uint32_t rank = 0;
    bool connected = false;
    bool ended = false;  ///< broken or given up
    bool given_up = false;
    bool departure_expected = false;
    std::uint32_t dealt = 0;  ///< how many messages any connection could carry
  };
  struct Receive {
    Request* request = nullptr;  ///< null: discarded, the bytes go nowhere
    std::byte* data = nullptr;
    std::size_t capacity = 0;
  };
  struct Outgoing {
    Request* request = nullptr;
    const std::byte* data = nullptr;
    std::size_t bytes = 0;
    Fault fault;
  };
  struct Ending {
    Request* request = nullptr;
    Status status = Status::kOk;
  };

  [[nodiscard]] Fabric::Seat& seat() { return fabric_.seats_.at(rank_); }
  [[nodiscard]] const Fabric::Seat& seat() const { return fabric_.seats_.at(rank_); }
  [[nodiscard]] Traffic& traffic(Tag tag);
  [[nodiscard]] Peer* peer_of(std::uint32_t rank);

  /// Counts a message in that memory. Throws std::logic_error if it does not take it.
  void admit(Memory memory, PeerId peer);
  void connect(Peer& peer);
  void act_on(Event event);
  void match(const Receive& receive, Event event);
  void clear(Event event);
  /// Nobody wants it: its bytes go nowhere, and its sender is done with it.
  void drop(Event event);
  void fill(const Receive& receive, const Event& event);
  void end(Peer& peer);

  Fabric& fabric_;
  std::uint32_t rank_;
  std::vector<Peer> peers_;
  std::map<Tag, std::deque<Receive>> posted_;    ///< receives without a message
  std::map<Tag, std::deque<Event>> unexpected_;  ///< messages without a receive
  std::map<std::uint64_t, Receive> matched_;     ///< by message: cleared, payload still to come
  std::map<std::uint64_t, Outgoing> outgoing_;   ///< by message: announced, not cleared yet
  std::deque<Event> inbox_;                      ///< arrived, not acted on
  std::deque<Ending> endings_;                   ///< to complete in the next progress()
  std::vector<PeerFailure> failures_;
  std::atomic<bool> woken_{false};
  bool closed_ = false;
  bool cut_off_ = false;
};

}  // namespace gtopk::transport::inproc
