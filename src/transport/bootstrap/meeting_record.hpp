// Bootstrap: what ranks write into the store while they meet, and under which keys.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/transport/bootstrap/meeting.hpp"

namespace gtopk::meeting {

/// The protocol's version. The arrival and the first two fields of the answer are the same in every
/// version, so that ranks of different versions can say so.
inline constexpr std::uint64_t kVersion = 2;

using Nonce = std::uint64_t;
[[nodiscard]] Nonce draw_nonce();

struct Arrival {
  std::uint32_t rank = 0;
  Nonce nonce = 0;
};

/// A rank's answer to the leader that asked it.
struct Answer {
  std::uint64_t version = kVersion;
  Nonce nonce = 0;  ///< the rank's own
  Presence presence;
};

/// How a meeting ended.
struct Table {
  std::optional<Error> failure;
  std::vector<Nonce> nonces;  ///< by rank
  Roll roll;
};

[[nodiscard]] std::string encode(const Arrival& arrival);
[[nodiscard]] std::string encode(const Answer& answer);
[[nodiscard]] std::string encode(const Table& table);
[[nodiscard]] std::string encode(Nonce nonce);

// These throw Error{kBootstrap} naming `key` if the bytes are invalid.
[[nodiscard]] Arrival decode_arrival(std::string_view key, std::string_view bytes);
/// For an answer of another version, sets only `version` and `nonce`.
[[nodiscard]] Answer decode_answer(std::string_view key, std::string_view bytes);
[[nodiscard]] Table decode_table(std::string_view key, std::string_view bytes);
[[nodiscard]] Nonce decode_nonce(std::string_view key, std::string_view bytes);
[[nodiscard]] std::int64_t decode_slot(std::string_view key, std::string_view bytes);

/// The error text of a meeting that failed after this time; `ranks` lists the missing ones.
[[nodiscard]] std::string describe_missing(std::string_view ranks, std::uint32_t size,
                                           transport::Duration after);
/// "in time (60 s)"
[[nodiscard]] std::string in_time(transport::Duration after);

inline constexpr std::string_view kArrivals = "gtopk/arrivals";  ///< a counter
inline constexpr std::string_view kFirst = "gtopk/first";        ///< slots up to here are settled
[[nodiscard]] std::string arrival_key(std::int64_t slot);
[[nodiscard]] std::string ping_key(Nonce rank);
[[nodiscard]] std::string alive_key(Nonce leader, Nonce rank);
[[nodiscard]] std::string table_key(Nonce leader);
[[nodiscard]] std::string missing_key(Nonce leader);  ///< missing ranks, as text
[[nodiscard]] std::string readers_key(Nonce leader);  ///< a counter of ranks that have read the
                                                      ///< table

}  // namespace gtopk::meeting
