// Engine: the observer that records the last operations of a process: which were called, which ran,
// which ended and how. The record is read when something goes wrong: on a timeout, by a signal, or
// by a call.
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

/// A text of bounded length, written without allocating; longer texts are truncated.
template <std::size_t Most>
class BoundedText {
 public:
  void assign(std::string_view text) { size_ = text.copy(characters_.data(), Most); }
  [[nodiscard]] std::string_view view() const { return {characters_.data(), size_}; }

 private:
  std::array<char, Most> characters_{};
  std::size_t size_ = 0;
};

/// The record of one operation.
struct FlightEntry {
  std::uint64_t number = 0;  ///< OperationEvent::number
  std::shared_ptr<const GroupIdentity> group;
  BoundedText<64> name;
  Agreement agreement;
  std::uint64_t bytes = 0;
  std::uint64_t sequence = 0;  ///< for a message: its number among recorded messages
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
  /// Records the last `capacity` >= 1 operations. `failed` is called on the engine thread when an
  /// operation has failed, and must not block; it may be empty.
  explicit FlightRecorder(std::size_t capacity, std::function<void()> failed = {});

  void queued(const OperationEvent& event) override;
  void started(const OperationEvent& event) override;
  void phase(const OperationEvent& event, std::string_view name) override;
  void ended(const OperationEvent& event, const Error* error) override;

  /// The entries, oldest first. Thread-safe.
  [[nodiscard]] std::vector<FlightEntry> entries() const;

 private:
  /// Returns null if the entry was overwritten or is older than the recorder. Must be called with
  /// mutex_ held.
  [[nodiscard]] FlightEntry* find(const OperationEvent& event);

  const std::size_t capacity_;
  const std::function<void()> failed_;
  mutable std::mutex mutex_;  // also held while the ring is copied
  /// Operation n is at n modulo capacity_, counted from the first one seen.
  std::vector<FlightEntry> ring_;
  std::optional<std::uint64_t> first_;
  std::uint64_t messages_ = 0;
};

/// Converts entries to JSON, with the field names of PyTorch's flight recorder where they fit
/// (docs/flight_recorder.md). `wall` is the offset from a time point to the time since 1970.
[[nodiscard]] std::string json_of(const std::vector<FlightEntry>& entries,
                                  transport::Duration wall);

}  // namespace gtopk::engine
