#include "src/engine/control.hpp"

#include <algorithm>
#include <bit>
#include <span>

#include "src/transport/base/log.hpp"

namespace gtopk::engine {

using transport::PeerId;
using transport::Request;
using transport::Status;

namespace {

/// The number of senders kept for the next notices.
constexpr std::size_t kKeptSenders = 64;

}  // namespace

void Control::watch(PeerId peer) {
  for (const Slot& slot : listeners_) {
    if (slot.peer == peer) {
      return;
    }
  }
  Slot& slot = listeners_.emplace_back();
  slot.control = this;
  slot.peer = peer;
  listen(slot);
}

void Control::listen(Slot& slot) {
  ++pending_;
  slot.request.is_receive = true;
  slot.request.connects = false;
  slot.request.prepare(&Control::received, &slot);
  const transport::Tag tag = transport::control_tag(transport_.peer(slot.peer).identity);
  transport_.recv(slot.peer, tag, std::span(slot.wire).first(wire_bytes()), slot.request);
}

void Control::received(Request& request) {
  Slot& slot = *static_cast<Slot*>(request.context());
  --slot.control->pending_;
  slot.control->arrived_.push_back(&slot);
}

void Control::sent(Request& request) {
  Slot& slot = *static_cast<Slot*>(request.context());
  --slot.control->pending_;
  --slot.control->sending_;
  if (slot.is_hello && request.status() != Status::kOk) {
    slot.control->hello_lost_(slot.peer);
  }
  slot.control->free_senders_.push_back(&slot);
}

void Control::send(PeerId peer, const Notice& notice, std::uint32_t connection) {
  if (free_senders_.empty()) {
    free_senders_.push_back(&senders_.emplace_back());
  }
  Slot& slot = *free_senders_.back();
  free_senders_.pop_back();
  slot.control = this;
  slot.peer = peer;
  const std::span wire = std::span(slot.wire).first(wire_bytes());
  const auto head = wire.first<Notice::kBytes>();
  encode(notice, head);
  if (key_) {
    key_->prove(transport_.self().identity, transport_.peer(peer).identity, head,
                wire.last<transport::JobKey::kProofBytes>());
  }
  ++pending_;
  ++sending_;
  slot.is_hello = notice.kind == NoticeKind::kHello;
  slot.request.is_receive = false;
  slot.request.urgent = !slot.is_hello;
  slot.request.connection = connection;
  slot.request.prepare(&Control::sent, &slot);
  transport_.send(peer, transport::control_tag(transport_.self().identity), wire, slot.request);
}

/// In a job without a secret, a notice that is too long carries a proof.
bool Control::is_proved(const Slot& slot) const {
  if (key_ == nullptr) {
    return slot.request.status() == Status::kOk;
  }
  const std::span<const std::byte> wire(slot.wire);
  return slot.request.status() == Status::kOk && slot.request.length() == wire.size() &&
         key_->proves(transport_.peer(slot.peer).identity, transport_.self().identity,
                      wire.first(Notice::kBytes), wire.subspan(Notice::kBytes));
}

void Control::refuse(PeerId peer) {
  refused_.insert(peer);
  if (std::has_single_bit(++refusals_)) {  // logged at 1, 2, 4 ...
    transport::log().warn(
        "dropped a notice in the name of pid {} on {}, whose sender has another secret "
        "(GTOPK_SECRET) than this process, or only one of them has any ({} so far)",
        transport_.peer(peer).process, transport_.peer(peer).host, refusals_);
  }
}

std::optional<Notice> Control::read(const Slot& slot) {
  if (!is_proved(slot)) {
    refuse(slot.peer);
    return std::nullopt;
  }
  const std::size_t length = std::min(slot.request.length(), Notice::kBytes);
  std::optional<Notice> notice = decode(std::span(slot.wire).first(length));
  if (!notice) {
    transport::log().error("received an unreadable notice of {} bytes from pid {} on {}",
                           slot.request.length(), transport_.peer(slot.peer).process,
                           transport_.peer(slot.peer).host);
  }
  return notice;
}

std::vector<std::pair<PeerId, Notice>> Control::take() {
  std::vector<std::pair<PeerId, Notice>> notices;
  // If more notices are queued, the next receive completes at once. Take all of them now because
  // the connection may end next.
  for (std::size_t next = 0; next < arrived_.size(); ++next) {
    Slot* const slot = arrived_[next];
    const Status status = slot->request.status();
    const bool came = status == Status::kOk || status == Status::kTruncated;
    if (came) {
      if (auto notice = read(*slot)) {
        notices.emplace_back(slot->peer, std::move(*notice));
      }
    }
    if (came && !stopped_) {
      listen(*slot);
    } else {
      slot->ended = true;
    }
  }
  arrived_.clear();
  if (sending_ == 0 && senders_.size() > kKeptSenders) {
    free_senders_.clear();
    senders_.clear();
  }
  return notices;
}

void Control::stop() {
  stopped_ = true;
  for (Slot& slot : listeners_) {
    if (slot.request.pending()) {
      transport_.cancel(slot.request);
    }
  }
}

bool Control::knows(transport::Tag tag) const {
  return std::ranges::any_of(listeners_, [&](const Slot& slot) {
    return transport::control_tag(transport_.peer(slot.peer).identity) == tag;
  });
}

std::vector<PeerId> Control::unsent() const {
  std::vector<PeerId> peers;
  for (const Slot& slot : senders_) {
    if (slot.request.pending()) {
      peers.push_back(slot.peer);
    }
  }
  return peers;
}

std::vector<PeerId> Control::peers() const {
  std::vector<PeerId> peers;
  for (const Slot& slot : listeners_) {
    if (!slot.ended) {
      peers.push_back(slot.peer);
    }
  }
  return peers;
}

}  // namespace gtopk::engine
