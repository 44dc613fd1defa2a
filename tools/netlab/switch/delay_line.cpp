#include "delay_line.hpp"

#include <algorithm>
#include <utility>

namespace netlab {

namespace {

bool later(const Frame& left, const Frame& right) {
  return left.due != right.due ? left.due > right.due : left.order > right.order;
}

// Draws uniformly from [0, 1), because the standard's distributions differ between libraries.
double uniform(std::mt19937_64& random) { return static_cast<double>(random() >> 11U) * 0x1p-53; }

}  // namespace

DelayLine::DelayLine(const Impairment& impairment, std::size_t port, std::size_t sources)
    : impairment_(impairment) {
  for (std::size_t source = 0; source < sources; ++source) {
    std::seed_seq seed{impairment.seed, impairment.seed >> 32U, static_cast<std::uint64_t>(port),
                       static_cast<std::uint64_t>(source)};
    sources_.push_back({std::mt19937_64(seed), Time::min()});
  }
}

Fate DelayLine::push(std::size_t source, Time arrival, std::vector<std::byte> bytes) {
  Source& from = sources_.at(source);
  // Both are drawn for every frame, so that one setting does not change the other's numbers.
  const bool lost = uniform(from.random) < impairment_.loss;
  const double swing = 2 * uniform(from.random) - 1;
  if (lost) {
    return Fate::kLost;
  }
  if (waiting_bytes_ + bytes.size() > impairment_.limit_bytes) {
    return Fate::kOverflowed;
  }
  const Time jitter{
      static_cast<Time::rep>(swing * static_cast<double>(impairment_.jitter.count()))};
  Time due = arrival + std::max(Time{0}, impairment_.delay + jitter);
  if (!impairment_.reorder) {
    due = std::max(due, from.last_due);
    from.last_due = due;
  }
  insert(due, std::move(bytes));
  return Fate::kWaits;
}

void DelayLine::pass(Time arrival, std::vector<std::byte> bytes) {
  insert(arrival, std::move(bytes));
}

void DelayLine::insert(Time due, std::vector<std::byte> bytes) {
  waiting_bytes_ += bytes.size();
  heap_.push_back({due, pushed_++, std::move(bytes)});
  std::push_heap(heap_.begin(), heap_.end(), later);
}

std::optional<Time> DelayLine::next_due() const {
  return heap_.empty() ? std::nullopt : std::optional(heap_.front().due);
}

std::optional<Frame> DelayLine::pop(Time now) {
  if (heap_.empty() || heap_.front().due > now) {
    return std::nullopt;
  }
  std::pop_heap(heap_.begin(), heap_.end(), later);
  Frame frame = std::move(heap_.back());
  heap_.pop_back();
  waiting_bytes_ -= frame.bytes.size();
  return frame;
}

}  // namespace netlab
