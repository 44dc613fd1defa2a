// Test support: the seeded scheduler of engines, and how ranks leave.
#include "tests/support/inproc_ranks.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "src/transport/base/log.hpp"
#include "tests/reference/hosts.hpp"

namespace gtopk::support {
namespace {

using engine::Engine;
using engine::Group;
using engine::OperationSpec;
using transport::Duration;
using transport::TimePoint;

/// Time passes in steps of at most this while something is in flight: finer than every timer of the
/// engine.
constexpr Duration kTick = std::chrono::microseconds(100);

}  // namespace

transport::inproc::FabricOptions network(std::uint64_t seed, transport::Duration max_delay) {
  static constexpr std::array<std::size_t, 4> kEager = {0, 100, 1024,
                                                        std::numeric_limits<std::size_t>::max()};
  transport::inproc::FabricOptions options;
  options.seed = seed;
  options.eager_below = kEager.at(seed % 4);
  options.max_delay = max_delay;
  options.connections = 1 + static_cast<std::uint32_t>(seed / kEager.size() % 3);
  return options;
}

transport::inproc::FabricOptions uneven_network(std::uint64_t seed) {
  return network(seed, std::chrono::microseconds(seed % 3 * 100));
}

InprocRanks::InprocRanks(std::uint32_t ranks, FabricOptions options, std::vector<std::string> hosts,
                         const std::vector<std::string>& secrets)
    : fabric_(std::make_unique<transport::inproc::Fabric>(ranks, options)),
      hosts_(hosts.empty() ? usual_hosts(ranks) : std::move(hosts)) {
  transport::log().set_level(transport::LogLevel::kOff);
  seats_.resize(ranks);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    addresses_.push_back(fabric_->port(rank).address());
    directory_.push_back(
        engine::PeerRecord{.address = addresses_.back(), .left = false, .last_words = {}});
    seats_[rank].lookups =
        std::make_unique<engine::Lookups>(std::make_unique<engine::InlineExecutor>());
    seats_[rank].engine = std::make_unique<Engine>(
        fabric_->port(rank), fabric_->clock(), executor_, seats_[rank].lookups.get(),
        transport::JobKey::of(secrets.empty() ? "" : secrets.at(rank)));
    for (std::uint32_t skipped = 0; skipped < rank; ++skipped) {
      engine(rank).release_group_id(engine(rank).reserve_group_id());
    }
  }
  std::vector<std::uint32_t> everybody(ranks);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    everybody[rank] = rank;
  }
  auto groups = make_group("default", everybody);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    seats_[rank].group = std::move(groups[rank]);
  }
}

InprocRanks::~InprocRanks() {
  for (std::uint32_t rank = 0; rank < size(); ++rank) {
    const bool frozen = !seats_[rank].running && !seats_[rank].closed;
    if (seats_[rank].dead || frozen) {
      endings_.forget(rank);
    }
  }
  endings_.expect_examined();
  // The ports first: they refer to requests of operations that may still be pending.
  fabric_.reset();
}

void InprocRanks::next_group_is(std::uint32_t rank, std::uint32_t number) {
  while (engine(rank).reserve_group_id() != number) {
  }
  engine(rank).release_group_id(number);
}

std::vector<std::shared_ptr<Group>> InprocRanks::make_group(
    const std::string& name, const std::vector<std::uint32_t>& members) {
  std::vector<std::shared_ptr<Group>> groups;
  std::vector<std::uint32_t> ids;
  for (const std::uint32_t member : members) {
    ids.push_back(engine(member).reserve_group_id());
  }
  for (std::uint32_t place = 0; place < members.size(); ++place) {
    engine::GroupSpec spec;
    spec.name = name;
    spec.rank = place;
    for (const std::uint32_t member : members) {
      spec.cards.push_back(addresses_[member]);
      spec.hosts.push_back(hosts_.at(member));
    }
    spec.ids = ids;
    spec.find_peer = [this, members](std::uint32_t place, const std::stop_token&) {
      if (const auto record = directory_.at(members.at(place))) {
        after_lookup_(members.at(place));
        return *record;
      }
      ++failed_lookups_;
      throw Error(ErrorKind::kBootstrap, "the directory is gone");
    };
    groups.push_back(engine(members[place]).add_group(std::move(spec)));
  }
  return groups;
}

SharedEnding InprocRanks::submit(std::uint32_t rank, OperationSpec spec,
                                 std::shared_ptr<Gate> input) {
  return submit(rank, group(rank), std::move(spec), std::move(input));
}

SharedEnding InprocRanks::submit(std::uint32_t rank, const std::shared_ptr<Group>& group,
                                 OperationSpec spec, std::shared_ptr<Gate> input) {
  const std::shared_ptr<Ending> ending = endings_.add(rank, spec.name);
  if (spec.timeout == Duration::zero()) {
    spec.timeout = kTimeout;
  }
  spec.done = [ending](const std::exception_ptr& error) {
    if (!error) {
      return ending->end(std::nullopt);
    }
    try {
      std::rethrow_exception(error);
    } catch (const Error& cause) {
      ending->end(cause);
    }
  };
  submitted_.push_back({rank, ending});
  engine(rank).submit(group, std::move(spec), std::move(input));
  return ending;
}

std::vector<SharedEnding> InprocRanks::run(
    const std::function<OperationSpec(std::uint32_t)>& spec) {
  std::vector<SharedEnding> endings;
  for (std::uint32_t rank = 0; rank < size(); ++rank) {
    endings.push_back(running(rank) ? submit(rank, spec(rank)) : std::make_shared<Ending>());
  }
  run_all();
  return endings;
}

void InprocRanks::run_all() {
  run_until([this] {
    std::erase_if(submitted_, [this](const Submitted& submitted) {
      return submitted.ending->ended || seats_[submitted.rank].dead;
    });
    return std::ranges::none_of(
        submitted_, [this](const Submitted& submitted) { return running(submitted.rank); });
  });
}

void InprocRanks::run_until(const std::function<bool()>& done) {
  for (std::uint64_t steps = 0; !done(); ++steps) {
    if (steps >= kStepBound) {
      throw Hang(fmt::format("no end after {} steps, at {} of virtual time, seed {}", steps,
                             std::chrono::duration<double>(now() - TimePoint{}).count(),
                             fabric_->options().seed));
    }
    act();
  }
}

void InprocRanks::run_for(Duration time) {
  horizon_ = now() + time;
  run_until([&] { return now() >= *horizon_; });
  horizon_.reset();
}

void InprocRanks::settle() {
  const auto nothing_under_way = [this] {
    return fabric_->quiet() && std::ranges::all_of(seats_, [](const Seat& seat) {
             return !seat.running || (seat.engine->under_way() == 0 && !seat.engine->has_queued());
           });
  };
  run_until(nothing_under_way);
  // Messages for operations that had ended are swept by a timer, which may itself start further
  // messages.
  const TimePoint swept = now() + std::chrono::milliseconds(3);
  run_until([&] { return now() >= swept && nothing_under_way(); });
}

bool InprocRanks::step(std::uint32_t rank) {
  Seat& seat = seats_[rank];
  return seat.running &&
         (seat.engine->step() != Engine::Step::kNothing || seat.engine->has_queued());
}

void InprocRanks::act() {
  const bool delivered = fabric_->deliver_one();
  const bool moved = step(static_cast<std::uint32_t>(fabric_->pick(size())));
  if (delivered || moved) {
    idle_ = 0;
    return;
  }
  if (++idle_ < 3) {
    return;
  }
  idle_ = 0;
  bool any = false;
  const auto first = static_cast<std::uint32_t>(fabric_->pick(size()));
  for (std::uint32_t i = 0; i < size(); ++i) {
    any |= step((first + i) % size());
  }
  if (!any) {
    pass_time();
  }
}

void InprocRanks::pass_time() {
  Duration until = fabric_->quiet() ? Duration(std::chrono::seconds(1)) : kTick;
  for (const Seat& seat : seats_) {
    if (seat.running) {
      until = std::min(until, seat.engine->next_timer() - now());
    }
  }
  if (horizon_) {
    until = std::min(until, *horizon_ - now());
  }
  fabric_->advance(std::max(until, Duration(1)));
}

void InprocRanks::kill(std::uint32_t rank, transport::inproc::Death death) {
  seats_[rank].running = false;
  seats_[rank].dead = true;
  fabric_->kill(rank, death);
}

void InprocRanks::freeze(std::uint32_t rank) {
  seats_[rank].running = false;
  fabric_->freeze(rank);
}

void InprocRanks::thaw(std::uint32_t rank) {
  seats_[rank].running = true;
  fabric_->thaw(rank);
}

void InprocRanks::leave(const std::vector<std::uint32_t>& leavers) {
  struct Leaver {
    std::uint32_t rank;
    Seat& seat;
    transport::Transport& port;
    std::size_t stage = 0;
    TimePoint end;
  };
  // What each waits for, for 2 s at most, and does then.
  using Stage = std::pair<std::function<bool(Leaver&)>, std::function<void(Leaver&)>>;
  const auto idle = [](Leaver& leaver) { return leaver.seat.engine->under_way() == 0; };
  const auto released = [&](Leaver& leaver) {
    return leaver.seat.engine->stop_listening() && idle(leaver);
  };
  const std::vector<Stage> stages = {
      {idle, [](Leaver&) {}},
      {[](Leaver& leaver) { return leaver.seat.engine->all_have_heard(); },
       [](Leaver& leaver) { leaver.seat.engine->say_goodbye(); }},
      {[](Leaver& leaver) { return leaver.seat.engine->farewell_said(); },
       [&](Leaver& leaver) {
         directory_.at(leaver.rank) = engine::PeerRecord{
             .address = {}, .left = true, .last_words = leaver.seat.engine->last_words()};
       }},
      {released,
       [&](Leaver& leaver) {
         if (!released(leaver)) {
           leaver.seat.engine->give_up_pending();
         }
       }},
      {released,
       [](Leaver& leaver) {
         leaver.port.close(Duration::zero());
         leaver.seat.running = false;
         leaver.seat.closed = true;
       }},
  };
  constexpr Duration kPatience = std::chrono::seconds(2);
  std::vector<Leaver> all;
  for (const std::uint32_t rank : leavers) {
    Seat& seat = seats_[rank];
    seat.engine->fail_everything(
        Error(ErrorKind::kAborted, "this process is leaving its process groups"));
    all.push_back({rank, seat, fabric_->port(rank), 0, now() + kPatience});
  }
  run_until([&] {
    for (Leaver& leaver : all) {
      while (leaver.stage < stages.size() &&
             (stages[leaver.stage].first(leaver) || now() >= leaver.end)) {
        stages[leaver.stage++].second(leaver);
        leaver.end = now() + kPatience;
      }
    }
    return std::ranges::all_of(all,
                               [&](const Leaver& leaver) { return leaver.stage == stages.size(); });
  });
}

std::vector<std::string> InprocRanks::close() {
  settle();
  for (Seat& seat : seats_) {
    if (seat.running) {
      seat.engine->say_goodbye();
    }
  }
  // Each closes as soon as it may; a peer without a connection to it says no goodbye, and is known
  // to have left when it closes.
  run_until([this] {
    for (std::uint32_t rank = 0; rank < size(); ++rank) {
      Seat& seat = seats_[rank];
      if (!seat.running || !seat.engine->farewell_said() || !seat.engine->stop_listening()) {
        continue;
      }
      fabric_->port(rank).close(Duration::zero());
      seat.running = false;
      seat.closed = true;
    }
    return std::ranges::none_of(seats_, [](const Seat& seat) { return seat.running; });
  });
  std::vector<std::string> left_over;
  for (std::uint32_t rank = 0; rank < size(); ++rank) {
    if (!seats_[rank].closed) {
      continue;
    }
    for (const transport::Tag tag : fabric_->counters(rank).unexpected_at_close) {
      // A goodbye may reach a rank that has stopped listening because it never talked to the
      // sender.
      if (static_cast<transport::TagKind>(tag >> 62U) == transport::TagKind::kControl) {
        continue;
      }
      left_over.push_back(fmt::format("at rank {}: {}", rank, transport::describe(tag)));
    }
  }
  return left_over;
}

}  // namespace gtopk::support
