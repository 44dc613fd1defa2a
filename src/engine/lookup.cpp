#include "src/engine/lookup.hpp"

#include <exception>
#include <memory>
#include <utility>

#include "gtopk/error.hpp"

namespace gtopk::engine {

void Lookups::run(Find find, Found found) {
  if (!thread_) {
    try {
      thread_.emplace("gtopk-lookup");
    } catch (const Error& no_thread) {
      found({}, no_thread.what());
      return;
    }
  }
  struct Outcome {
    std::string address;
    std::string error;
  };
  const auto outcome = std::make_shared<Outcome>();
  thread_->run({[outcome, find = std::move(find), stop = stop_.get_token()] {
                  try {
                    outcome->address = find(stop);
                  } catch (const std::exception& error) {
                    outcome->error = error.what();
                  }
                },
                [outcome, found = std::move(found)] {
                  found(std::move(outcome->address), std::move(outcome->error));
                }});
}

}  // namespace gtopk::engine
