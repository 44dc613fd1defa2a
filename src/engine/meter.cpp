#include "src/engine/meter.hpp"

namespace gtopk::engine {
namespace {

/// Charges the phase that has just ended, if the table has a row for it.
void charge_phase(const OperationEvent& event) {
  if (event.phase.empty()) {
    return;
  }
  for (std::size_t row = 0; row < kMetrics.size(); ++row) {
    if (kMetrics[row].phase == event.phase) {
      event.group.metrics.add(static_cast<Metric>(row), event.at - event.phase_began);
    }
  }
}

}  // namespace

void Meter::started(const OperationEvent& event) {
  Metrics& metrics = event.group.metrics;
  metrics.add(Metric::kOperations);
  metrics.raise(Metric::kMostInFlight, event.in_flight);
  metrics.add(Metric::kQueueSeconds, event.at - event.queued);
}

void Meter::phase(const OperationEvent& event, std::string_view /*name*/) { charge_phase(event); }

void Meter::ended(const OperationEvent& event, const Error* error) {
  if (!event.ran) {
    return;
  }
  event.group.metrics.add(Metric::kRunSeconds, event.at - event.started);
  if (error == nullptr) {
    charge_phase(event);
  }
}

}  // namespace gtopk::engine
