#include "src/engine/flight_recorder.hpp"

#include <algorithm>
#include <utility>

namespace gtopk::engine {

FlightRecorder::FlightRecorder(std::size_t capacity, std::function<void()> failed)
    : capacity_(std::max<std::size_t>(capacity, 1)), failed_(std::move(failed)) {
  ring_.reserve(capacity_);
}

FlightEntry* FlightRecorder::find(const OperationEvent& event) {
  if (!first_ || event.number < *first_) {
    return nullptr;
  }
  const std::size_t place = (event.number - *first_) % capacity_;
  if (place >= ring_.size() || ring_[place].number != event.number) {
    return nullptr;
  }
  return &ring_[place];
}

void FlightRecorder::queued(const OperationEvent& event) {
  const std::lock_guard lock(mutex_);
  if (!first_) {
    first_ = event.number;
  }
  const std::size_t place = (event.number - *first_) % capacity_;
  if (place >= ring_.size()) {
    ring_.resize(place + 1);  // stays within the reserved capacity
  }
  FlightEntry& entry = ring_[place];
  entry.number = event.number;
  entry.group = event.group.identity();
  entry.name.assign(event.name);
  entry.agreement = event.agreement;
  entry.bytes = event.bytes;
  entry.sequence = event.point_to_point ? ++messages_ : event.sequence;
  entry.point_to_point = event.point_to_point;
  entry.timeout = event.timeout;
  entry.queued = event.queued;
  entry.started.reset();
  entry.phase = {};
  entry.ended.reset();
  entry.failure.reset();
  entry.error.clear();
}

void FlightRecorder::started(const OperationEvent& event) {
  const std::lock_guard lock(mutex_);
  if (FlightEntry* const entry = find(event)) {
    entry->started = event.at;
  }
}

void FlightRecorder::phase(const OperationEvent& event, std::string_view name) {
  const std::lock_guard lock(mutex_);
  if (FlightEntry* const entry = find(event)) {
    entry->phase = name;
  }
}

void FlightRecorder::ended(const OperationEvent& event, const Error* error) {
  {
    const std::lock_guard lock(mutex_);
    if (FlightEntry* const entry = find(event)) {
      entry->ended = event.at;
      if (error != nullptr) {
        entry->failure = error->kind();
        entry->error = error->what();
      }
    }
  }
  if (error != nullptr && failed_) {
    failed_();
  }
}

std::vector<FlightEntry> FlightRecorder::entries() const {
  std::vector<FlightEntry> entries;
  {
    const std::lock_guard lock(mutex_);
    entries = ring_;
  }
  std::ranges::sort(entries, {}, &FlightEntry::number);
  return entries;
}

}  // namespace gtopk::engine
