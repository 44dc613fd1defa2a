// Engine: the observer that remembers the last operations of a process: which were called, which
// ran, which ended and how. It is read when something went wrong: on a time-out, by signal, by
// call.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gtopk/collective.hpp"
#include "src/engine/group.hpp"
#include "src/engine/observer.hpp"
#include "src/transport/base/clock.hpp"

namespace gtopk::engine {

/// A text of bounded length that is written without allocating; a longer one is cut.
template <std::size_t Most>
class BoundedText {
 public:
  void assign(std::string_view text) { size_ = text.copy(characters_.data(), Most); }
  [[nodiscard]] std::string_view view() const { return {characters_.data(), size_}; }

 private:
  std::array<char, Most> characters_{};
  std::size_t size_ = 0;
};

/// What is remembered of an operation.
struct FlightEntry {
  std::uint64_t number = 0;  ///< OperationEvent::number
  std::shared_ptr<const GroupIdentity> group;
  BoundedText<64> name;
  Agreement agreement;
  std::uint64_t bytes = 0;
  std::uint64_t sequence = 0;  ///< of a message: among those that are remembered of this process
  bool point_to_point = false;
  transport::Duration timeout{};
  transport::TimePoint queued{};
  std::optional<transport::TimePoint> started{};
  std::string_view phase{};
  std::optional<transport::TimePoint> ended{};
  std::optional<ErrorKind> failure{};
  std::string error{};
};

class FlightRecorder final : public Observer {
 public:
  /// Remembers the last `capacity` operations, 1 at least. `failed` is called on the engine's
  /// thread when an operation has failed, and must not block; it may be empty.
  explicit FlightRecorder(std::size_t capacity, std::function<void()> failed = {});

  void queued(const OperationEvent& event) override;
  void started(const OperationEvent& event) override;
  void phase(const OperationEvent& event, std::string_view name) override;
  void ended(const OperationEvent& event, const Error* error) override;

  /// Any thread: what is remembered, the oldest first.
  [[nodiscard]] std::vector<FlightEntry> entries() const;

 private:
  /// Null where it has been overwritten, or came before the recorder. Under mutex_.
  [[nodiscard]] FlightEntry* find(const OperationEvent& event);

  const std::size_t capacity_;
  const std::function<void()> failed_;
  mutable std::mutex mutex_;  // held for as long as it takes to copy the ring
  /// Operation n is at n modulo capacity_, counted from the first that was seen.
  std::vector<FlightEntry> ring_;
  std::optional<std::uint64_t> first_;
  std::uint64_t messages_ = 0;
};

/// As JSON, with the field names of PyTorch's flight recorder where they fit
/// (docs/flight_recorder.md). wall: what to add to a time point to have the time since 1970.
[[nodiscard]] std::string json_of(const std::vector<FlightEntry>& entries,
                                  transport::Duration wall);

}  // namespace gtopk::engine
