// Engine: the channel on which engines send each other notices. One receive per known peer is
// always posted. In a job with a secret, every notice (the first is a hello) ends with a proof that
// its sender knows the secret; notices without it are dropped.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "src/engine/notice.hpp"
#include "src/transport/base/job_key.hpp"
#include "src/transport/base/transport.hpp"

namespace gtopk::engine {

class Control {
 public:
  /// Called, possibly by send(), with a peer to which a hello could not be sent. It must not call
  /// this object.
  using HelloLost = std::function<void(transport::PeerId)>;

  /// `key` is null if the job has no secret.
  Control(transport::Transport& transport, std::shared_ptr<const transport::JobKey> key,
          HelloLost hello_lost)
      : transport_(transport), key_(std::move(key)), hello_lost_(std::move(hello_lost)) {}
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;
  Control(Control&&) = delete;
  Control& operator=(Control&&) = delete;
  ~Control() = default;

  /// Listens to a peer from now on. Idempotent.
  void watch(transport::PeerId peer);
  void send(transport::PeerId peer, const Notice& notice, std::uint32_t connection = 0);
  /// Whether notices must prove the job's secret.
  [[nodiscard]] bool wants_proof() const { return key_ != nullptr; }
  /// Whether a notice in the peer's name was dropped because its sender's secret differs.
  [[nodiscard]] bool has_refused(transport::PeerId peer) const { return refused_.contains(peer); }
  /// Returns what has arrived since the last call, and listens again.
  [[nodiscard]] std::vector<std::pair<transport::PeerId, Notice>> take();
  /// Cancels the receives. The transport must progress until quiet().
  void stop();
  [[nodiscard]] bool quiet() const { return pending_ == 0; }
  [[nodiscard]] bool sending() const { return sending_ != 0; }
  /// Whether a notice with that tag is from a peer to which this object has ever listened.
  [[nodiscard]] bool knows(transport::Tag tag) const;
  /// Peers that have not received a notice yet.
  [[nodiscard]] std::vector<transport::PeerId> unsent() const;
  /// Peers that are watched and have not gone.
  [[nodiscard]] std::vector<transport::PeerId> peers() const;

 private:
  struct Slot {
    Control* control = nullptr;
    transport::PeerId peer = 0;
    bool ended = false;
    bool is_hello = false;
    std::array<std::byte, Notice::kBytes + transport::JobKey::kProofBytes> wire{};
    transport::Request request;
  };

  [[nodiscard]] std::size_t wire_bytes() const {
    return Notice::kBytes + (wants_proof() ? transport::JobKey::kProofBytes : 0);
  }
  void listen(Slot& slot);
  [[nodiscard]] std::optional<Notice> read(const Slot& slot);
  [[nodiscard]] bool is_proved(const Slot& slot) const;
  void refuse(transport::PeerId peer);
  static void received(transport::Request& request);
  static void sent(transport::Request& request);

  transport::Transport& transport_;
  std::shared_ptr<const transport::JobKey> key_;
  HelloLost hello_lost_;
  std::set<transport::PeerId> refused_;
  std::uint64_t refusals_ = 0;
  std::deque<Slot> listeners_;
  std::deque<Slot> senders_;
  std::vector<Slot*> free_senders_;
  std::vector<Slot*> arrived_;
  std::size_t pending_ = 0;
  std::size_t sending_ = 0;
  bool stopped_ = false;
};

}  // namespace gtopk::engine
