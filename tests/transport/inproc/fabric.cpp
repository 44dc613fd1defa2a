// Transport, inproc: the scheduler. It decides what arrives next and what never does; it matches no
// messages.
#include "tests/transport/inproc/fabric.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "tests/transport/inproc/port.hpp"

namespace gtopk::transport::inproc {

Fabric::Fabric(std::uint32_t ranks, FabricOptions options)
    : options_(options), random_(options.seed) {
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    Seat& seat = seats_.emplace_back();
    seat.info = {.identity = random_() >> 2U,  // as wide as a control tag has space for
                 .host = fmt::format("node{}", rank),
                 .process = 1000 + static_cast<std::int64_t>(rank)};
    seat.owned = std::make_unique<Port>(*this, rank);
    seat.port = seat.owned.get();
  }
}

Fabric::~Fabric() {
  for (Seat& seat : seats_) {
    seat.owned.reset();  // each tells the others, so all members must still exist
  }
}

Transport& Fabric::port(std::uint32_t rank) {
  Seat& seat = seats_.at(rank);
  if (seat.port == nullptr) {
    throw std::logic_error("the port's owner has let it go");
  }
  return *seat.port;
}

std::unique_ptr<Transport> Fabric::take_port(std::uint32_t rank) {
  Seat& seat = seats_.at(rank);
  if (!seat.owned) {
    throw std::logic_error("the port has been taken before");
  }
  return std::move(seat.owned);
}

const std::vector<std::deque<Event>::iterator>& Fabric::candidates(bool at_any_time) {
  candidates_.clear();
  for (Seen* seen : {&streams_, &pairs_, &pairs_with_messages_}) {
    seen->begin(under_way_.size());
  }
  for (auto event = under_way_.begin(); event != under_way_.end(); ++event) {
    using Stage = Event::Stage;
    const bool is_message = event->stage == Stage::kEager || event->stage == Stage::kAnnounce;
    const Stream pair{.source = event->source, .destination = event->destination};
    // Every event enters the sets, ready or not: a waiting event holds back those behind it.
    const bool first_of_stream = !is_message || streams_.add({event->source, event->destination,
                                                              event->connection, event->tag});
    const bool first_of_pair = pairs_.add(pair);
    const bool first_message =
        !is_message ||
        pairs_with_messages_.add({event->source, event->destination, event->connection, 0});
    const bool control = is_message && kind_of(event->tag) == TagKind::kControl;
    if (!running(seats_[event->destination])) {
      continue;
    }
    if (!at_any_time && event->ready > clock_.time) {
      continue;
    }
    if (!first_of_stream || (control && !first_message)) {
      continue;
    }
    if (event->stage == Stage::kEnd && event->last && !first_of_pair) {
      continue;
    }
    candidates_.push_back(event);
  }
  return candidates_;
}

bool Fabric::deliver_one() {
  const auto& ready = candidates(false);
  if (ready.empty()) {
    return false;
  }
  auto chosen = options_.reorder ? ready[pick(ready.size())]
                                 : *std::min_element(ready.begin(), ready.end(),
                                                     [](const auto& left, const auto& right) {
                                                       return left->ready < right->ready;
                                                     });
  Event event = std::move(*chosen);
  under_way_.erase(chosen);
  Seat& seat = seats_[event.destination];
  if (event.stage == Event::Stage::kEnd) {
    std::erase_if(under_way_, [&](const Event& late) {
      return late.source == event.source && late.destination == event.destination;
    });
  }
  if (seat.presence == Presence::kClosed || seat.port == nullptr) {
    const bool message =
        event.stage == Event::Stage::kEager || event.stage == Event::Stage::kAnnounce;
    seat.counters.arrived_after_close += message ? 1 : 0;
    return true;
  }
  seat.port->arrive(std::move(event));
  return true;
}

bool Fabric::advance_to_next() {
  const auto& coming = candidates(true);
  if (coming.empty()) {
    return false;
  }
  const auto next = *std::min_element(
      coming.begin(), coming.end(),
      [](const auto& left, const auto& right) { return left->ready < right->ready; });
  clock_.time = std::max(clock_.time, next->ready);
  return true;
}

bool Fabric::quiet() const {
  const bool nothing_coming =
      std::none_of(under_way_.begin(), under_way_.end(),
                   [&](const Event& event) { return running(seats_[event.destination]); });
  return nothing_coming && std::none_of(seats_.begin(), seats_.end(), [&](const Seat& seat) {
           return running(seat) && seat.port != nullptr && seat.port->has_work();
         });
}

void Fabric::kill(std::uint32_t rank, Death death) {
  Seat& seat = seats_.at(rank);
  if (seat.presence != Presence::kPresent) {
    return;
  }
  seat.presence = death == Death::kNoticed ? Presence::kDead : Presence::kSilentlyDead;
  if (seat.port != nullptr) {
    seat.port->cut_off();
  }
  forget(rank);
  if (death == Death::kSilent) {
    return;
  }
  for (std::uint32_t other = 0; other < size(); ++other) {
    if (other == rank || seats_[other].port == nullptr) {
      continue;
    }
    if (!seats_[other].port->is_connected_to(rank)) {
      continue;
    }
    post_end(rank, other, false, "Connection reset by remote peer", options_.failure_delay);
  }
}

void Fabric::post(Event event) {
  const Presence there = seats_[event.destination].presence;
  if (there == Presence::kDead || there == Presence::kSilentlyDead) {
    return;
  }
  if (event.fault.drop && event.stage != Event::Stage::kPayload) {
    return;
  }
  Duration delay = options_.min_delay + event.fault.delay;
  if (options_.max_delay > options_.min_delay) {
    const Duration span = options_.max_delay - options_.min_delay;
    delay += Duration(pick(static_cast<std::uint64_t>(span.count()) + 1));
  }
  event.ready = clock_.time + delay;
  under_way_.push_back(std::move(event));
}

void Fabric::post_end(std::uint32_t source, std::uint32_t destination, bool last,
                      std::string reason, Duration delay) {
  Event event;
  event.stage = Event::Stage::kEnd;
  event.source = source;
  event.destination = destination;
  event.last = last;
  event.reason = std::move(reason);
  event.fault.delay = delay;
  post(std::move(event));
}

void Fabric::connected(std::uint32_t from, std::uint32_t to) {
  const Presence there = seats_[to].presence;
  if (there == Presence::kDead || there == Presence::kClosed) {
    post_end(to, from, true, "Connection refused", options_.failure_delay);
  }
}

void Fabric::closed(std::uint32_t rank) {
  seats_[rank].presence = Presence::kClosed;
  for (std::uint32_t other = 0; other < size(); ++other) {
    const Port* const port = seats_[other].port;
    if (other == rank || port == nullptr || !port->is_connected_to(rank)) {
      continue;
    }
    post_end(rank, other, true, "Connection closed by remote peer", Duration::zero());
  }
}

void Fabric::left(std::uint32_t rank) {
  seats_[rank].port = nullptr;  // its requests may be gone, so they are not touched
  kill(rank);
}

void Fabric::forget(std::uint32_t rank) {
  std::erase_if(under_way_, [&](const Event& event) { return event.destination == rank; });
}

void Fabric::pass_time(std::uint32_t waiting, Duration at_most) {
  const Seat& seat = seats_[waiting];
  if ((seat.port != nullptr && seat.port->has_work()) || deliver_one()) {
    return;
  }
  // Time stands still while another rank has something to do: it would be late for no reason.
  for (const Seat& other : seats_) {
    if (running(other) && other.port != nullptr && other.port->has_work()) {
      return;
    }
  }
  const TimePoint until = clock_.time + at_most;
  for (const auto& event : candidates(true)) {
    if (event->ready < until) {
      advance_to_next();
      return;
    }
  }
  clock_.time = until;
}

}  // namespace gtopk::transport::inproc
