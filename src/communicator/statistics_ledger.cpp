#include "src/communicator/statistics_ledger.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "gtopk/process_statistics.hpp"
#include "src/engine/group.hpp"

namespace gtopk {
namespace {

template <class Figure>
void add(Adding adding, Figure& total, Figure more) {
  total = adding == Adding::kSum ? total + more : std::max(total, more);
}

void add(Statistics& total, const Statistics& more) {
  for (const MetricInfo& metric : kMetrics) {
    if (metric.count != nullptr) {
      add(metric.adding, total.*metric.count, more.*metric.count);
    } else {
      add(metric.adding, total.*metric.seconds, more.*metric.seconds);
    }
  }
}

struct Ledger {
  const std::int64_t of = getpid();
  std::mutex mutex;
  std::vector<std::shared_ptr<const engine::Group>> groups;
  Statistics ended;
  bool used = false;
};

/// This process's ledger. A forked child gets its own ledger, because the parent's mutex may be
/// locked and its groups are not the child's. The ledger is never destroyed, because groups may end
/// while the process exits.
Ledger& ledger() {
  static std::atomic<Ledger*> last{std::make_unique<Ledger>().release()};
  Ledger* found = last.load();
  while (found->of != getpid()) {
    auto fresh = std::make_unique<Ledger>();
    if (last.compare_exchange_strong(found, fresh.get())) {
      found = fresh.release();
    }
  }
  return *found;
}

}  // namespace

void begin_counting(std::shared_ptr<const engine::Group> group) {
  Ledger& here = ledger();
  const std::lock_guard lock(here.mutex);
  here.used = true;
  here.groups.push_back(std::move(group));
}

void end_counting(const engine::Group& group) {
  Ledger& here = ledger();
  const std::lock_guard lock(here.mutex);
  add(here.ended, group.metrics.read());
  std::erase_if(here.groups, [&](const auto& each) { return each.get() == &group; });
}

std::optional<Statistics> process_statistics() {
  Ledger& here = ledger();
  const std::lock_guard lock(here.mutex);
  if (!here.used) {
    return std::nullopt;
  }
  Statistics total = here.ended;
  for (const auto& group : here.groups) {
    add(total, group->metrics.read());
  }
  return total;
}

}  // namespace gtopk
