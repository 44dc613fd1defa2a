#include "src/gtopk/plan/planner.hpp"

#include <limits>
#include <string_view>
#include <utility>

#include "src/gtopk/plan/links.hpp"

namespace gtopk::sparse {

using engine::Task;

namespace {

/// The name of the field that detects ranks with different costs, or without costs.
constexpr std::string_view kCostsOf = "costs_of";

/// Whether the two calls in the error used different costs.
bool says_that_costs_differ(const Error& error) {
  const std::string_view text = error.what();
  const auto value_at = [text](std::size_t field) {
    const std::string_view value = text.substr(field);
    return value.substr(0, value.find_first_of(",)"));
  };
  const std::size_t one = text.find(kCostsOf);
  return error.kind() == ErrorKind::kMismatch && one != std::string_view::npos &&
         value_at(one) != value_at(text.rfind(kCostsOf));
}

/// While it lives, later collectives do not use the costs known so far.
class MayMeasure {
 public:
  MayMeasure(Planner& planner, std::uint64_t number) : planner_(planner), number_(number) {
    planner_.measuring.insert(number_);
  }
  MayMeasure(const MayMeasure&) = delete;
  MayMeasure& operator=(const MayMeasure&) = delete;
  MayMeasure(MayMeasure&&) = delete;
  MayMeasure& operator=(MayMeasure&&) = delete;
  ~MayMeasure() { planner_.measuring.erase(number_); }

 private:
  Planner& planner_;
  std::uint64_t number_;
};

}  // namespace

Planner& planner_of(engine::GroupView& group) {
  auto& planner = group.per_group_state().of<Planner>();
  if (!planner.routes) {
    planner.routes.emplace(group.hosts());
  }
  return planner;
}

Task<void> know_costs(engine::GroupView& group, std::unique_ptr<engine::Turn>& turn,
                      std::uint64_t tensor_bytes, bool anew, Agreement asked) {
  Planner& planner = planner_of(group);
  const std::uint64_t number = group.sequence();
  if (!anew && planner.knows(number, tensor_bytes)) {
    co_return;
  }
  const MayMeasure later_ones_wait(planner, number);
  group.enter("plan");
  turn = std::make_unique<engine::Turn>(group);
  engine::Turn& mine = *turn;
  co_await mine;
  // An earlier operation may have measured the costs.
  if (!anew && planner.knows(number, tensor_bytes)) {
    co_return;
  }
  group.agree_on(asked.word(kCostsOf, "none"));
  Task<Costs> measuring = measure_costs(group, *planner.routes, tensor_bytes);
  planner.costs = co_await measuring;
  planner.measured_by = number;
  planner.good_for = measures_all(tensor_bytes, *planner.routes)
                         ? std::numeric_limits<std::uint64_t>::max()
                         : Planner::kGrowth * tensor_bytes;
}

Agreement with_costs(Agreement asked, const Planner& planner) {
  return std::move(asked.number(kCostsOf, planner.measured_by));
}

void forget_costs(engine::PerGroupState& per_group_state, std::uint64_t number,
                  const Error& error) {
  auto& planner = per_group_state.of<Planner>();
  if (planner.measured_by < number && says_that_costs_differ(error)) {
    planner.costs.reset();
  }
}

}  // namespace gtopk::sparse
