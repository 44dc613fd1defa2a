// Bootstrap: the records that ranks write into the store while they meet, and their keys.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/transport/base/job_key.hpp"
#include "src/transport/bootstrap/meeting.hpp"

namespace gtopk::meeting {

/// The protocol's version. The arrival and the first two fields of the answer are the same in every
/// version, so that ranks of different versions can say so.
inline constexpr std::uint64_t kVersion = 2;
/// The protocol's version in jobs whose answers and tables are sealed.
inline constexpr std::uint64_t kSealedVersion = 3;

using Nonce = std::uint64_t;
[[nodiscard]] Nonce draw_nonce();

struct Arrival {
  std::uint32_t rank = 0;
  Nonce nonce = 0;
};

/// How the secret of a record's writer compares with its reader's.
enum class Secret : std::uint8_t { kSame, kOther, kOnlyThere, kOnlyHere };
/// Returns a text such as "rank 1 has another secret than rank 0", with their names.
[[nodiscard]] std::string compare(std::string_view there, Secret secret, std::string_view here);

/// A rank's answer to the leader that asked it.
struct Answer {
  std::uint64_t version = kVersion;
  Nonce nonce = 0;  ///< the rank's own nonce
  Presence presence;
  Secret secret = Secret::kSame;
};

/// How a meeting ended.
struct Table {
  std::optional<Error> failure;
  std::vector<Nonce> nonces;  ///< indexed by rank
  Roll roll;
};

[[nodiscard]] std::string encode(const Arrival& arrival);
[[nodiscard]] std::string encode(Nonce nonce);
// These seal the record for the store's `key`, unless the job has no secret (`job` is null).
[[nodiscard]] std::string encode(const Answer& answer, std::string_view key = {},
                                 const transport::JobKey* job = nullptr);
[[nodiscard]] std::string encode(const Table& table, std::string_view key = {},
                                 const transport::JobKey* job = nullptr);

// These throw Error{kBootstrap} naming `key` if the bytes are invalid.
[[nodiscard]] Arrival decode_arrival(std::string_view key, std::string_view bytes);
/// For an answer of another version, sets only `version` and `nonce`. For an answer sealed with
/// another secret, also sets the name of the process.
[[nodiscard]] Answer decode_answer(std::string_view key, std::string_view bytes,
                                   const transport::JobKey* job = nullptr);
/// If no rank with this secret can have written the table, returns a table with a failure that says
/// so.
[[nodiscard]] Table decode_table(std::string_view key, std::string_view bytes,
                                 const transport::JobKey* job = nullptr);
[[nodiscard]] Nonce decode_nonce(std::string_view key, std::string_view bytes);
[[nodiscard]] std::int64_t decode_slot(std::string_view key, std::string_view bytes);

/// Returns the error text of a meeting that failed after this time; `ranks` lists the missing
/// ranks.
[[nodiscard]] std::string describe_missing(std::string_view ranks, std::uint32_t size,
                                           transport::Duration after);
/// Returns "in time (60 s)".
[[nodiscard]] std::string in_time(transport::Duration after);

inline constexpr std::string_view kArrivals = "gtopk/arrivals";  ///< a counter
inline constexpr std::string_view kFirst = "gtopk/first";        ///< slots up to here are settled
[[nodiscard]] std::string arrival_key(std::int64_t slot);
[[nodiscard]] std::string ping_key(Nonce rank);
[[nodiscard]] std::string alive_key(Nonce leader, Nonce rank);
[[nodiscard]] std::string table_key(Nonce leader);
[[nodiscard]] std::string missing_key(Nonce leader);  ///< missing ranks, as text
[[nodiscard]] std::string readers_key(Nonce leader);  ///< counts ranks that have read the table

}  // namespace gtopk::meeting
