/// @file
/// The metrics of a group in one table: names, units, descriptions, and how figures of several
/// groups or ranks combine. C++'s Statistics, Python's gtopk.stats() and the docs are generated
/// from it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gtopk {

/// What a group has done since it was created. Bytes and messages are this rank's, including
/// headers. kMetrics describes each figure.
struct Statistics {
  std::uint64_t operations = 0;         ///< operations begun
  std::uint64_t messages_sent = 0;      ///< messages of operations sent
  std::uint64_t messages_received = 0;  ///< messages of operations received
  std::uint64_t bytes_sent = 0;         ///< bytes of the messages sent
  std::uint64_t bytes_received = 0;     ///< bytes of the messages received
  std::uint64_t notices_sent = 0;       ///< messages about errors sent
  std::uint64_t most_in_flight = 0;     ///< the most operations in flight at one time
  double queue_seconds = 0;             ///< from the calls of operations to their starts
  double run_seconds = 0;               ///< from the starts of operations to their ends
  double compress_seconds = 0;          ///< time of selecting entries
  double exchange_seconds = 0;          ///< time of messages and merges of sparse operations
  double commit_seconds = 0;            ///< time of writing results and residuals
};

/// Rows of kMetrics.
enum class Metric : std::uint8_t {
  kOperations,
  kMessagesSent,
  kMessagesReceived,
  kBytesSent,
  kBytesReceived,
  kNoticesSent,
  kMostInFlight,
  kQueueSeconds,
  kRunSeconds,
  kCompressSeconds,
  kExchangeSeconds,
  kCommitSeconds,
};

/// How figures of several groups, ranks or intervals combine.
enum class Adding : std::uint8_t { kSum, kMaximum };

/// A row of kMetrics: what one figure of Statistics means.
struct MetricInfo {
  std::string_view name;         ///< the member's name
  std::string_view unit;         ///< in UCUM's notation: "1", "By", "s"
  std::string_view description;  ///< one sentence
  Adding adding;                 ///< how several figures combine
  /// The member that holds the figure if it is a count, else null.
  std::uint64_t Statistics::*count;
  /// The member that holds the figure if it is a time, else null.
  double Statistics::*seconds;
  /// The phase of operations whose time it measures; empty if none.
  std::string_view phase;
};

/// All metrics, indexed by Metric.
inline constexpr std::array<MetricInfo, 12> kMetrics = {{
    {"operations", "1", "Operations begun: collectives, sends and receives.", Adding::kSum,
     &Statistics::operations, nullptr, ""},
    {"messages_sent", "1", "Messages of operations that this rank sent.", Adding::kSum,
     &Statistics::messages_sent, nullptr, ""},
    {"messages_received", "1", "Messages of operations that this rank received.", Adding::kSum,
     &Statistics::messages_received, nullptr, ""},
    {"bytes_sent", "By", "Bytes of the messages sent, headers included.", Adding::kSum,
     &Statistics::bytes_sent, nullptr, ""},
    {"bytes_received", "By", "Bytes of the messages received, headers included.", Adding::kSum,
     &Statistics::bytes_received, nullptr, ""},
    {"notices_sent", "1", "Messages that told other ranks of an error, or asked them for one.",
     Adding::kSum, &Statistics::notices_sent, nullptr, ""},
    {"most_in_flight", "1", "Operations under way at one time, at most.", Adding::kMaximum,
     &Statistics::most_in_flight, nullptr, ""},
    {"queue_seconds", "s", "From the calls of operations to their starts.", Adding::kSum, nullptr,
     &Statistics::queue_seconds, ""},
    {"run_seconds", "s",
     "From the starts of operations to their ends; those in flight at once add up.", Adding::kSum,
     nullptr, &Statistics::run_seconds, ""},
    {"compress_seconds", "s", "Selecting.", Adding::kSum, nullptr, &Statistics::compress_seconds,
     "compress"},
    {"exchange_seconds", "s",
     "Messages and merges of sparse operations; those in flight at once add up.", Adding::kSum,
     nullptr, &Statistics::exchange_seconds, "exchange"},
    {"commit_seconds", "s", "Writing results and residuals.", Adding::kSum, nullptr,
     &Statistics::commit_seconds, "commit"},
}};

/// The row of kMetrics for a metric.
[[nodiscard]] constexpr const MetricInfo& info(Metric metric) {
  return kMetrics[static_cast<std::size_t>(metric)];
}

static_assert(info(Metric::kOperations).name == "operations");
static_assert(info(Metric::kCommitSeconds).name == "commit_seconds");

}  // namespace gtopk
