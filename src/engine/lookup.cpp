#include "src/engine/lookup.hpp"

#include <exception>
#include <utility>

#include "gtopk/error.hpp"

namespace gtopk::engine {

void Lookups::run(Find find, Found found) {
  if (!executor_) {
    try {
      executor_ = std::make_unique<ComputeThread>("gtopk-lookup");
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
                  [outcome, found = std::move(found)] {
                    found(std::move(outcome->record), std::move(outcome->error));
                  }});
}

}  // namespace gtopk::engine
