#include "tests/support/ending.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <exception>
#include <stdexcept>

namespace gtopk::support {

std::string Ending::text() const {
  static_cast<void>(good());
  return peek();
}

std::string Ending::peek() const {
  if (!ended) {
    return "not ended";
  }
  return error.error_ ? std::string(error.error_->what()) : std::string("ok");
}

void Ending::ignore(std::string_view /*why*/) const { error.examined_ = true; }

void Ending::end(std::optional<Error> cause) {
  if (ended) {
    throw std::logic_error("an operation ended twice");
  }
  ended = true;
  error.error_ = std::move(cause);
  error.final_ = true;
}

std::shared_ptr<Ending> Endings::add(std::uint32_t rank, const std::string& operation) {
  auto ending = std::make_shared<Ending>();
  entries_.push_back({rank, operation, ending});
  return ending;
}

void Endings::forget(std::uint32_t rank) {
  std::erase_if(entries_, [rank](const Entry& entry) { return entry.rank == rank; });
}

std::string Endings::unexamined() const {
  const auto dropped = [](const Entry& entry) { return !entry.ending->examined(); };
  const auto first = std::ranges::find_if(entries_, dropped);
  if (first == entries_.end()) {
    return {};
  }
  const auto count = 1 + std::count_if(first + 1, entries_.end(), dropped);
  return fmt::format(
      "{} of {} operations ended and the test did not look how; the first: {} of "
      "rank {}: {}",
      count, entries_.size(), first->operation, first->rank, first->ending->peek());
}

void Endings::expect_examined() const {
  // A test that has failed has said why; its unexamined endings are no news.
  if (std::uncaught_exceptions() > 0 || testing::Test::HasFailure()) {
    return;
  }
  const std::string dropped = unexamined();
  if (!dropped.empty()) {
    ADD_FAILURE() << dropped;
  }
}

}  // namespace gtopk::support
