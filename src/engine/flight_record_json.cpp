// Engine: a flight record as JSON, for people, scripts, and tools that know PyTorch's flight
// recorder; fields that exist in both have PyTorch's names.
#include <chrono>
#include <cstdint>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "src/engine/flight_recorder.hpp"
#include "src/numbers/element_types.hpp"

namespace gtopk::engine {
namespace {

using Json = nlohmann::ordered_json;

/// The version of gtopk's fields, not of PyTorch's recorder.
constexpr const char* kVersion = "gtopk 1";

std::int64_t nanoseconds(transport::TimePoint time, transport::Duration wall) {
  return std::chrono::nanoseconds(time.time_since_epoch() + wall).count();
}

double milliseconds(transport::Duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

Json time_of(const std::optional<transport::TimePoint>& time, transport::Duration wall) {
  return time ? Json(nanoseconds(*time, wall)) : Json(nullptr);
}

/// PyTorch's names for the states of operations that have not failed.
std::string state_of(const FlightEntry& entry) {
  if (entry.failure) {
    return "failed";
  }
  if (entry.ended) {
    return "completed";
  }
  return entry.started ? "started" : "scheduled";
}

/// Bytes per element of the type with that name; 1 if there is no such type.
std::uint64_t element_bytes(std::string_view name) {
  std::uint64_t bytes = 1;
  std::apply(
      [&](const auto&... rows) {
        (static_cast<void>(rows.name == name && (bytes = size_of(rows.type), true)), ...);
      },
      kElementTypes);
  return bytes;
}

/// The numbers of elements, if the agreement has them.
std::vector<std::uint64_t> elements_of(const Agreement& agreement) {
  std::vector<std::uint64_t> elements = agreement.numbers_of("d");
  if (!elements.empty()) {
    return elements;
  }
  elements = agreement.numbers_of("bytes");
  const std::uint64_t width = element_bytes(agreement.word_of("dtype"));
  for (std::uint64_t& each : elements) {
    each /= width;
  }
  return elements;
}

Json json_of(const FlightEntry& entry, transport::Duration wall) {
  Json json;
  json["record_id"] = entry.number;
  json["process_group"] = {entry.group->name, ""};
  json["collective_seq_id"] = entry.point_to_point ? 0 : entry.sequence;
  json["p2p_seq_id"] = entry.point_to_point ? entry.sequence : 0;
  json["op_id"] = entry.number;
  json["profiling_name"] = fmt::format("gtopk:{}", entry.name.view());
  json["is_p2p"] = entry.point_to_point;
  json["call"] = entry.agreement.empty() ? std::string(entry.name.view()) : entry.agreement.text();
  json["input_sizes"] = Json::array();
  for (const std::uint64_t each : elements_of(entry.agreement)) {
    json["input_sizes"].push_back(Json::array({each}));
  }
  const std::string_view type = entry.agreement.word_of("dtype");
  json["input_dtypes"] = type.empty() ? Json::array() : Json::array({std::string(type)});
  json["bytes"] = entry.bytes;
  json["state"] = state_of(entry);
  json["phase"] = std::string(entry.phase);
  json["timeout_ms"] = milliseconds(entry.timeout);
  json["time_created_ns"] = nanoseconds(entry.queued, wall);
  json["time_discovered_started_ns"] = time_of(entry.started, wall);
  json["time_discovered_completed_ns"] = time_of(entry.ended, wall);
  json["duration_ms"] = entry.started && entry.ended
                            ? Json(milliseconds(*entry.ended - *entry.started))
                            : Json(nullptr);
  json["retired"] = entry.ended.has_value();
  if (entry.failure) {
    json["error_kind"] = std::string(to_string(*entry.failure));
    json["error"] = entry.error;
  }
  return json;
}

/// The number of the newest recorded collective of a group in each state, or -1.
struct Latest {
  std::int64_t enqueued = -1;
  std::int64_t started = -1;
  std::int64_t completed = -1;
};

void note(Latest& status, const FlightEntry& entry) {
  const auto sequence = static_cast<std::int64_t>(entry.sequence);
  status.enqueued = std::max(status.enqueued, sequence);
  if (entry.started) {
    status.started = std::max(status.started, sequence);
  }
  if (entry.ended && !entry.failure) {
    status.completed = std::max(status.completed, sequence);
  }
}

}  // namespace

std::string json_of(const std::vector<FlightEntry>& entries, transport::Duration wall) {
  std::map<std::string, std::pair<const GroupIdentity*, Latest>> groups;
  for (const FlightEntry& entry : entries) {
    groups[entry.group->name].first = entry.group.get();  // of equal names, the group called last
  }
  Json records = Json::array();
  for (const FlightEntry& entry : entries) {
    auto& [group, status] = groups.at(entry.group->name);
    if (!entry.point_to_point && entry.group.get() == group) {
      note(status, entry);
    }
    records.push_back(json_of(entry, wall));
  }
  Json json;
  json["version"] = kVersion;
  json["pg_config"] = Json::object();
  json["pg_status"] = Json::object();
  for (const auto& [name, group] : groups) {
    const auto& [identity, status] = group;
    json["pg_config"][name] = {
        {"name", name}, {"desc", ""}, {"rank", identity->rank}, {"members", identity->members}};
    json["pg_status"][name] = {{"last_enqueued_collective", status.enqueued},
                               {"last_started_collective", status.started},
                               {"last_completed_collective", status.completed}};
  }
  json["entries"] = std::move(records);
  // Host names may contain any bytes.
  return json.dump(1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace gtopk::engine
