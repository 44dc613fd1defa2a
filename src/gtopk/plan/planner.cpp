#include "src/gtopk/plan/planner.hpp"

#include "src/gtopk/plan/links.hpp"

namespace gtopk::sparse {

using engine::Task;

Planner& planner_of(engine::GroupView& group) {
  auto& planner = group.keepsakes().of<Planner>();
  if (!planner.routes) {
    planner.routes.emplace(group.hosts());
  }
  return planner;
}

Task<void> know_costs(engine::GroupView& group, std::unique_ptr<engine::Turn>& turn, bool anew) {
  Planner& planner = planner_of(group);
  if (!anew && planner.knows(group.sequence())) {
    co_return;
  }
  group.enter("plan");
  turn = std::make_unique<engine::Turn>(group);
  engine::Turn& mine = *turn;
  co_await mine;
  // An operation before this one may have measured them. If it failed, it failed on every rank: no
  // rank gets through unless all have taken part.
  if (!anew && planner.knows(group.sequence())) {
    co_return;
  }
  Task<Costs> measuring = measure_costs(group, *planner.routes);
  planner.costs = co_await measuring;
  planner.measured_by = group.sequence();
}

}  // namespace gtopk::sparse
