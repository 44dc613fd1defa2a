#include "src/engine/lookup.hpp"

#include <exception>
#include <utility>

#include "gtopk/error.hpp"

namespace gtopk::engine {

Lookups::~Lookups() {
  stop();
  if (thread_ == nullptr) {
    return;
  }
  thread_->end_within(kLastLookup);
  const std::lock_guard lock(listener_->mutex);
  listener_->listens = false;
}

void Lookups::run(Find find, Found found) {
  if (!executor_) {
    try {
      auto thread = std::make_unique<ComputeThread>("gtopk-lookup");
      thread_ = thread.get();
      executor_ = std::move(thread);
    } catch (const Error& no_thread) {
      found({}, no_thread.what());
      return;
    }
  }
  struct Outcome {
    PeerRecord record;
    std::string error;
  };
  const auto outcome = std::make_shared<Outcome>();
  executor_->run({[outcome, find = std::move(find), stop = stop_.get_token()] {
                    try {
                      outcome->record = find(stop);
                    } catch (const std::exception& error) {
                      outcome->error = error.what();
                    }
                  },
                  [outcome, found = std::move(found), listener = listener_] {
                    const std::lock_guard lock(listener->mutex);
                    if (listener->listens) {
                      found(std::move(outcome->record), std::move(outcome->error));
                    }
                  }});
}

}  // namespace gtopk::engine
