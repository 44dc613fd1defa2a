#include "src/engine/control.hpp"

#include <algorithm>

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
  transport_.recv(slot.peer, tag, slot.wire, slot.request);
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
  encode(notice, slot.wire);
  ++pending_;
  ++sending_;
  slot.is_hello = notice.kind == NoticeKind::kHello;
  slot.request.is_receive = false;
  slot.request.urgent = !slot.is_hello;
  slot.request.connection = connection;
  slot.request.prepare(&Control::sent, &slot);
  transport_.send(peer, transport::control_tag(transport_.self().identity), slot.wire,
                  slot.request);
}

std::vector<std::pair<PeerId, Notice>> Control::take() {
  std::vector<std::pair<PeerId, Notice>> notices;
  // If further notices are queued behind one, the next receive completes at once. Take all of them
  // now, as the connection may end next.
  for (std::size_t next = 0; next < arrived_.size(); ++next) {
    Slot* const slot = arrived_[next];
    const Status status = slot->request.status();
    if (status == Status::kOk) {
      if (auto notice = decode({slot->wire.data(), slot->request.length()})) {
        notices.emplace_back(slot->peer, std::move(*notice));
      } else {
        transport::log().error("received an unreadable notice of {} bytes from pid {} on {}",
                               slot->request.length(), transport_.peer(slot->peer).process,
                               transport_.peer(slot->peer).host);
      }
    }
    const bool again = !stopped_ && (status == Status::kOk || status == Status::kTruncated);
    if (again) {
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
