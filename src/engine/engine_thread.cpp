#include "src/engine/engine_thread.hpp"

#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <exception>
#include <future>

#include "src/transport/base/shortage.hpp"

namespace gtopk::engine {
namespace {

using transport::Duration;
using transport::TimePoint;

/// How long to poll for messages, yielding the core each time, before sleeping on the transport's
/// descriptor. It polls only while that pays (polling.hpp).
constexpr Duration kSpin = std::chrono::microseconds(50);
/// In the middle of a long message, every packet would wake the engine. Instead, the engine sleeps
/// for a fraction of the time that the message has taken so far. This delays the message's end by
/// half of the sleep on average, and frees the cores for other processes (docs/performance.md).
constexpr int kRestShare = 8;
constexpr Duration kShortestRest = std::chrono::microseconds(10);
constexpr Duration kLongestRest = std::chrono::microseconds(500);
/// Never sleep longer than this, because UCX has missed wake-ups.
constexpr Duration kLongestSleep = std::chrono::milliseconds(50);
/// Nanoseconds by which the kernel may prolong a sleep. Its default of 50 us is longer than most
/// sleeps here.
constexpr unsigned long kTimerSlack = 1000;
constexpr Duration kCloseBound = std::chrono::seconds(2);
/// The time limit for telling the directory that this process leaves.
constexpr Duration kAnnounceBound = std::chrono::seconds(2);

/// A job at its gate has exchanged everything, so no peer waits for it, and only threads of this
/// process may still report parts. If two checks, this far apart, find nothing else in a group that
/// is being destroyed, those parts will never come, because a backward was aborted.
constexpr Duration kLookAtGates = std::chrono::milliseconds(100);

/// The minimum time for goodbyes, however long the earlier steps took. Most goodbyes are already
/// under way.
constexpr Duration kLeastFarewell = std::chrono::milliseconds(100);

}  // namespace

EngineThread::EngineThread(const std::function<std::unique_ptr<transport::Transport>()>& make,
                           std::shared_ptr<const transport::JobKey> key) {
  std::promise<void> made;
  std::future<void> ready = made.get_future();
  thread_ = transport::start_thread("gtopk-engine", [this, &make, &key, &made] {
    try {
      transport_ = make();
      engine_ = std::make_unique<Engine>(*transport_, clock_, compute_, &lookups_, std::move(key));
      engine_->flow_control().set_window(send_window_of_environment());
      address_ = transport_->address();
      card_ = transport_->card();
      self_ = transport_->self();
      description_ = transport_->describe();
    } catch (...) {
      engine_.reset();
      transport_.reset();
      made.set_exception(std::current_exception());
      return;
    }
    made.set_value();
    prctl(PR_SET_TIMERSLACK, kTimerSlack);
    loop();
  });
  try {
    ready.get();
  } catch (...) {
    thread_.join();
    throw;
  }
}

EngineThread::~EngineThread() {
  engine_->post([this] { ending_ = true; });
  thread_.join();
  lookups_.stop();
}

void EngineThread::call(const std::function<void()>& work) {
  std::promise<void> promise;
  std::future<void> result = promise.get_future();
  engine_->post([&] {
    try {
      work();
      promise.set_value();
    } catch (...) {
      promise.set_exception(std::current_exception());
    }
  });
  result.get();
}

void EngineThread::let_end(const std::shared_ptr<Group>& group) {
  const auto idle = std::make_shared<std::promise<void>>();
  std::future<void> ended = idle->get_future();
  call([&] { engine_->when_idle(group, [idle] { idle->set_value(); }); });
  const TimePoint until = shared_deadline_.begin(clock_.now(), patience);
  bool at_gates = false;
  const auto still_at_gates = [&] {
    const bool before = at_gates;
    call([&] { at_gates = engine_->scheduler().idle(*group, true); });
    return before && at_gates;
  };
  const auto has_ended = [&](TimePoint by) {
    return ended.wait_until(std::min(by, until)) == std::future_status::ready;
  };
  while (!has_ended(clock_.now() + kLookAtGates) && clock_.now() < until && !still_at_gates()) {
  }
  shared_deadline_.end(clock_.now(), clock_.now() >= until);
}

void EngineThread::advance(TimePoint& worked) {
  switch (engine_->step()) {
    case Engine::Step::kWorked:
      end_look(true);
      worked = clock_.now();
      break;
    case Engine::Step::kBytesMoved: {
      end_look(true);
      const Duration pause = std::min((clock_.now() - worked) / kRestShare, kLongestRest);
      if (pause >= kShortestRest) {
        transport_->rest(pause);
      }
      break;
    }
    case Engine::Step::kNothing:
      idle(worked);
      break;
  }
}

void EngineThread::idle(TimePoint worked) {
  const TimePoint now = clock_.now();
  if (now - worked < kSpin && (looking_since_ || polling_.pays())) {
    looking_since_ = looking_since_.value_or(now);
    sched_yield();
    return;
  }
  end_look(false);
  polling_.rested();
  const Duration until_timer = std::max(engine_->next_timer() - now, Duration::zero());
  transport_->wait(std::min(kLongestSleep, until_timer));
}

void EngineThread::end_look(bool found) {
  if (looking_since_) {
    polling_.looked(found && clock_.now() - *looking_since_ < kSpin);
    looking_since_.reset();
  }
}

void EngineThread::loop() {
  TimePoint worked = clock_.now();
  while (!ending_) {
    advance(worked);
  }
  leave();
}

void EngineThread::step_until(const std::function<bool()>& done, Duration at_most) {
  const TimePoint end = clock_.now() + at_most;
  TimePoint worked = clock_.now();
  while (!done() && clock_.now() < end) {
    advance(worked);
  }
}

void EngineThread::announce_departure(const void* directory, Announce announce) {
  std::erase_if(announcements_, [&](const auto& each) { return each.first == directory; });
  if (announcements_.size() == kMostDirectories) {
    announcements_.pop_front();
  }
  announcements_.emplace_back(directory, std::move(announce));
}

/// Informs peers that contact this process from now on. It comes last because its readers expect no
/// more of the messages that this process has sent.
void EngineThread::announce() {
  if (announcements_.empty() || !engine_->unaware_peer()) {
    return;
  }
  lookups_.stop();
  const auto announced = std::make_shared<bool>(false);
  lookups_.run(
      [announcements = announcements_,
       departure =
           Departure{engine_->last_words(), !engine_->anyone_has_left()}](const std::stop_token&) {
        for (const auto& [directory, announce] : announcements) {
          announce(departure);
        }
        return PeerRecord{};
      },
      [this, announced](const PeerRecord&, const std::string&) {
        engine_->post([announced] { *announced = true; });
      });
  step_until([&] { return *announced; }, kAnnounceBound);
}

void EngineThread::leave() {
  const auto nothing_under_way = [this] { return engine_->under_way() == 0; };
  const TimePoint until = shared_deadline_.begin(clock_.now(), patience);
  step_until(nothing_under_way, until - clock_.now());
  engine_->fail_everything(
      Error(ErrorKind::kAborted, "this process is leaving its process groups"));
  step_until(nothing_under_way, patience);
  step_until([this] { return engine_->all_have_heard(); }, FailureAcks::kBound);
  engine_->say_goodbye();
  step_until([this] { return engine_->farewell_said(); },
             std::max<Duration>(until - clock_.now(), kLeastFarewell));
  announce();
  const auto released = [this] { return engine_->stop_listening() && engine_->under_way() == 0; };
  step_until(released, kCloseBound);
  if (!released()) {
    // A stopped or dead peer may still hold a message of this process, and the transport closes
    // only when there are none left.
    engine_->give_up_pending();
    step_until(released, kCloseBound);
  }
  transport_->close(kCloseBound);
}

}  // namespace gtopk::engine
