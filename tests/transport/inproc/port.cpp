// Transport, inproc: matching, completion and the end of endpoints. Bytes are copied one message at
// a time, directly between the callers' buffers, so that a sanitizer catches a buffer that is too
// small or freed too early.
#include "tests/transport/inproc/port.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "gtopk/error.hpp"

namespace gtopk::transport::inproc {
namespace {

constexpr std::string_view kScheme = "gtopk-inproc:";
constexpr std::byte kPadding{0xA5};

/// The message as the network carries it.
std::vector<std::byte> wire_copy(const std::byte* data, std::size_t bytes, const Fault& fault) {
  std::vector<std::byte> copy(bytes);
  if (bytes != 0) {
    std::memcpy(copy.data(), data, bytes);
  }
  if (fault.length) {
    copy.resize(*fault.length, kPadding);
  }
  if (fault.flip && *fault.flip < copy.size()) {
    copy[*fault.flip] ^= std::byte{0xFF};
  }
  return copy;
}

}  // namespace

std::string Port::address() const {
  return fmt::format("{}{}:{}", kScheme, rank_, self().identity);
}

PeerId Port::add_peer(std::string_view address) {
  const auto unreadable = [&] {
    return Error(ErrorKind::kBootstrap,
                 fmt::format("'{}' is not the address of a rank of this fabric", address));
  };
  if (!address.starts_with(kScheme)) {
    throw unreadable();
  }
  const std::string_view tail = address.substr(kScheme.size());
  std::uint32_t rank = 0;
  const auto [end, error] = std::from_chars(tail.data(), tail.data() + tail.size(), rank);
  if (error != std::errc{} || rank >= fabric_.size()) {
    throw unreadable();
  }
  const std::uint64_t identity = fabric_.seats_[rank].info.identity;
  const std::string_view rest(end, static_cast<std::size_t>(tail.data() + tail.size() - end));
  if (rest != fmt::format(":{}", identity)) {
    throw unreadable();
  }

  const auto known = std::find_if(peers_.begin(), peers_.end(),
                                  [&](const Peer& peer) { return peer.rank == rank; });
  if (known != peers_.end()) {
    return static_cast<PeerId>(known - peers_.begin());
  }
  peers_.push_back({.rank = rank});
  return static_cast<PeerId>(peers_.size() - 1);
}

const PeerInfo& Port::peer(PeerId peer) const { return fabric_.seats_[peers_.at(peer).rank].info; }

Port::Peer* Port::peer_of(std::uint32_t rank) {
  const auto found = std::find_if(peers_.begin(), peers_.end(),
                                  [&](const Peer& peer) { return peer.rank == rank; });
  return found == peers_.end() ? nullptr : &*found;
}

bool Port::is_connected_to(std::uint32_t rank) const {
  return std::any_of(peers_.begin(), peers_.end(), [&](const Peer& peer) {
    return peer.rank == rank && peer.connected && !peer.ended;
  });
}

Traffic& Port::traffic(Tag tag) {
  return seat().counters.by_kind.at(static_cast<std::size_t>(tag >> (64U - TagBits::kKind)));
}

void Port::connect(Peer& peer) {
  if (peer.connected) {
    return;
  }
  peer.connected = true;
  fabric_.connected(rank_, peer.rank);
}

void Port::admit(Memory memory, PeerId peer) {
  if (!takes(memory.kind, peer)) {
    throw std::logic_error("a message in memory that the port does not take");
  }
  seat().counters.on_devices += memory.is_host() ? 0 : 1;
}

void Port::send(PeerId peer, Tag tag, ConstBytes data, Request& request) {
  if (closed_) {
    throw std::logic_error("send on a closed port");
  }
  admit(data.memory(), peer);
  Peer& to = peers_.at(peer);
  request.peer = peer;
  request.tag = tag;
  request.is_receive = false;
  request.transport = this;
  if (to.ended || cut_off_) {
    request.complete(Status::kPeerFailed, 0);
    return;
  }
  connect(to);
  traffic(tag).messages_sent += 1;
  const std::size_t bytes = data.size();
  traffic(tag).bytes_sent += bytes;

  const std::byte* const from = data.data();
  const std::uint64_t number = fabric_.new_message();
  Event event;
  event.number = number;
  event.source = rank_;
  event.destination = to.rank;
  event.tag = tag;
  event.connection = (request.connection == kAnyConnection ? to.dealt++ : request.connection) %
                     fabric_.options().connections;
  seat().counters.bytes_over.at(event.connection) += bytes;
  event.fault = fabric_.fault_of({number, rank_, to.rank, tag, bytes});
  if (event.fault.refuse) {
    if (event.fault.delay == Duration::zero()) {
      request.complete(Status::kPeerFailed, 0);
      return;
    }
    outgoing_[number] = {&request, from, bytes, event.fault};
    std::swap(event.source, event.destination);
    event.stage = Event::Stage::kRefuse;
    fabric_.post(std::move(event));
    return;
  }
  if (bytes < fabric_.options().eager_below) {
    event.stage = Event::Stage::kEager;
    event.payload = wire_copy(from, bytes, event.fault);
    fabric_.post(std::move(event));
    request.complete(Status::kOk, bytes);
    return;
  }
  event.stage = Event::Stage::kAnnounce;
  outgoing_[number] = {&request, from, bytes, event.fault};
  fabric_.post(std::move(event));
}

void Port::recv(PeerId peer, Tag tag, Bytes data, Request& request) {
  if (closed_) {
    throw std::logic_error("receive on a closed port");
  }
  admit(data.memory(), peer);
  Peer& from = peers_.at(peer);
  request.peer = peer;
  request.tag = tag;
  request.is_receive = true;
  request.transport = this;
  const auto waiting = unexpected_.find(tag);
  const bool lies_there = waiting != unexpected_.end() && !from.given_up &&
                          waiting->second.front().stage == Event::Stage::kEager;
  if (cut_off_ || (from.ended && !lies_there)) {
    request.complete(Status::kPeerFailed, 0);
    return;
  }
  if (request.connects) {
    connect(from);
  }
  const Receive receive{&request, data.data(), data.size()};
  if (waiting == unexpected_.end()) {
    posted_[tag].push_back(receive);
    return;
  }
  Event event = std::move(waiting->second.front());
  waiting->second.pop_front();
  if (waiting->second.empty()) {
    unexpected_.erase(waiting);
  }
  match(receive, std::move(event));
}

void Port::match(const Receive& receive, Event event) {
  if (peers_[receive.request->peer].rank != event.source) {
    ++seat().counters.wrong_source;
  }
  if (event.stage == Event::Stage::kEager) {
    fill(receive, event);
    return;
  }
  connect(peers_[receive.request->peer]);  // the clearance goes back over an endpoint
  matched_[event.number] = receive;
  clear(std::move(event));
}

void Port::clear(Event event) {
  std::swap(event.source, event.destination);
  event.stage = Event::Stage::kClear;
  event.fault = {};
  fabric_.post(std::move(event));
}

void Port::fill(const Receive& receive, const Event& event) {
  if (receive.request == nullptr) {
    return;
  }
  Traffic& counted = traffic(event.tag);
  counted.messages_received += 1;
  counted.bytes_received += event.payload.size();
  const std::size_t copied = std::min(receive.capacity, event.payload.size());
  if (copied != 0) {
    std::memcpy(receive.data, event.payload.data(), copied);
  }
  const bool truncated = event.payload.size() > receive.capacity;
  receive.request->complete(truncated ? Status::kTruncated : Status::kOk, event.payload.size());
}

void Port::act_on(Event event) {
  Peer* const source = peer_of(event.source);
  const bool over = source != nullptr && source->ended;
  if (over) {
    return;  // late news from an endpoint that is gone
  }
  switch (event.stage) {
    case Event::Stage::kEager:
    case Event::Stage::kAnnounce: {
      const auto waiting = posted_.find(event.tag);
      if (waiting == posted_.end()) {
        unexpected_[event.tag].push_back(std::move(event));
        return;
      }
      const Receive receive = waiting->second.front();
      waiting->second.pop_front();
      if (waiting->second.empty()) {
        posted_.erase(waiting);
      }
      match(receive, std::move(event));
      return;
    }
    case Event::Stage::kClear: {
      const auto sending = outgoing_.find(event.number);
      if (sending == outgoing_.end()) {
        return;
      }
      const Outgoing outgoing = sending->second;
      outgoing_.erase(sending);
      std::swap(event.source, event.destination);
      event.stage = Event::Stage::kPayload;
      event.payload = wire_copy(outgoing.data, outgoing.bytes, outgoing.fault);
      fabric_.post(std::move(event));
      outgoing.request->complete(Status::kOk, outgoing.bytes);
      return;
    }
    case Event::Stage::kRefuse: {
      const auto sending = outgoing_.find(event.number);
      if (sending != outgoing_.end()) {
        Request* const request = sending->second.request;
        outgoing_.erase(sending);
        request->complete(Status::kPeerFailed, 0);
      }
      return;
    }
    case Event::Stage::kPayload: {
      const auto receiving = matched_.find(event.number);
      if (receiving == matched_.end()) {
        return;
      }
      const Receive receive = receiving->second;
      matched_.erase(receiving);
      fill(receive, event);
      return;
    }
    case Event::Stage::kEnd:
      if (source == nullptr || !source->connected) {
        return;
      }
      if (!source->departure_expected) {
        failures_.push_back({static_cast<PeerId>(source - peers_.data()), event.reason});
      }
      end(*source);
      return;
  }
}

bool Port::progress() {
  if (seat().frozen) {
    return false;
  }
  woken_.store(false, std::memory_order_relaxed);
  const bool moved = has_work();
  for (bool first = true; !inbox_.empty(); first = false) {
    if (inbox_.front().stage == Event::Stage::kEnd && !first) {
      break;  // the caller first takes what came before it
    }
    Event event = std::move(inbox_.front());
    inbox_.pop_front();
    act_on(std::move(event));
  }
  for (const Ending& ending : std::exchange(endings_, {})) {
    ending.request->complete(ending.status, 0);
  }
  return moved;
}

void Port::wait(Duration at_most) {
  if (woken_.exchange(false, std::memory_order_acquire) || seat().frozen || cut_off_) {
    return;
  }
  fabric_.pass_time(rank_, at_most);
}

void Port::cancel(Request& request) {
  const auto waiting = posted_.find(request.tag);
  if (waiting == posted_.end()) {
    return;  // matched, ending, or a send
  }
  const auto erased = std::erase_if(
      waiting->second, [&](const Receive& receive) { return receive.request == &request; });
  if (waiting->second.empty()) {
    posted_.erase(waiting);
  }
  if (erased != 0) {
    endings_.push_back({&request, Status::kCancelled});
  }
}

void Port::end(Peer& peer) {
  peer.ended = true;
  const auto id = static_cast<PeerId>(&peer - peers_.data());
  const auto ends = [&](const Request* request) {
    if (request == nullptr || request->peer != id) {
      return false;
    }
    endings_.push_back({const_cast<Request*>(request), Status::kPeerFailed});
    return true;
  };
  for (auto& [tag, receives] : posted_) {
    std::erase_if(receives, [&](const Receive& receive) { return ends(receive.request); });
  }
  std::erase_if(posted_, [](const auto& stream) { return stream.second.empty(); });
  std::erase_if(matched_, [&](const auto& entry) { return ends(entry.second.request); });
  std::erase_if(outgoing_, [&](const auto& entry) { return ends(entry.second.request); });
}

void Port::give_up(PeerId peer) {
  Peer& given_up = peers_.at(peer);
  if (given_up.ended) {
    return;
  }
  const bool had_endpoint = given_up.connected;
  given_up.given_up = true;
  end(given_up);
  const Port* const other = fabric_.seats_[given_up.rank].port;
  if (!had_endpoint || cut_off_ || other == nullptr || !other->is_connected_to(rank_)) {
    return;
  }
  fabric_.post_end(rank_, given_up.rank, false, "Connection reset by remote peer",
                   fabric_.options().failure_delay);
}

bool Port::spent() const {
  return std::any_of(peers_.begin(), peers_.end(),
                     [](const Peer& peer) { return peer.ended && !peer.departure_expected; });
}

void Port::cut_off() {
  cut_off_ = true;
  for (Peer& peer : peers_) {
    end(peer);
  }
  inbox_.clear();
  unexpected_.clear();
}

std::size_t Port::discard(Tag tag, Tag mask) {
  std::size_t taken = 0;
  for (auto stream = unexpected_.begin(); stream != unexpected_.end();) {
    if ((stream->first & mask) != (tag & mask)) {
      ++stream;
      continue;
    }
    for (Event& event : stream->second) {
      ++taken;
      drop(std::move(event));
    }
    stream = unexpected_.erase(stream);
  }
  seat().counters.discarded += taken;
  seat().counters.discards += 1;
  return taken;
}

void Port::drop(Event event) {
  if (event.stage != Event::Stage::kAnnounce) {
    return;
  }
  matched_[event.number] = {};
  clear(std::move(event));
}

std::size_t Port::sift(const std::function<bool(Tag)>& ours) {
  std::size_t dropped = 0;
  for (auto stream = unexpected_.begin(); stream != unexpected_.end();) {
    if (ours(stream->first)) {
      ++stream;
      continue;
    }
    for (Event& event : stream->second) {
      ++dropped;
      drop(std::move(event));
    }
    stream = unexpected_.erase(stream);
  }
  return dropped;
}

void Port::close(Duration /*at_most*/) {
  if (closed_ || cut_off_) {
    return;
  }
  progress();
  const bool receiving = std::any_of(matched_.begin(), matched_.end(), [](const auto& entry) {
    return entry.second.request != nullptr;
  });
  if (!posted_.empty() || !outgoing_.empty() || receiving) {
    throw std::logic_error(fmt::format("rank {} closes its port with requests pending", rank_));
  }
  closed_ = true;
  for (const auto& [tag, messages] : unexpected_) {
    seat().counters.unexpected_at_close.insert(seat().counters.unexpected_at_close.end(),
                                               messages.size(), tag);
  }
  fabric_.closed(rank_);
}

std::string Port::describe() const {
  return fmt::format("in-process, rank {} of {}, seed {}, eager below {} bytes", rank_,
                     fabric_.size(), fabric_.options().seed, fabric_.options().eager_below);
}

}  // namespace gtopk::transport::inproc
