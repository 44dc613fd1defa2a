#include "src/transport/bootstrap/meeting_record.hpp"

#include <limits>
#include <random>

#include <fmt/format.h>

#include "src/transport/base/tag.hpp"
#include "src/transport/bootstrap/record.hpp"

namespace gtopk::meeting {
namespace {

using bootstrap::put;
using bootstrap::RecordReader;
using transport::JobKey;

RecordReader reader_of(std::string_view key, std::string_view bytes) {
  return {fmt::format("the store's '{}'", key), bytes};
}

Error not_of_this_job(std::string_view key) {
  return {ErrorKind::kBootstrap,
          fmt::format("the store's '{}' was not written by a rank 0 with this rank's secret: set "
                      "the same GTOPK_SECRET on all ranks",
                      key)};
}

}  // namespace

Nonce draw_nonce() {
  std::random_device random;
  return (Nonce{random()} << 32U) | random();
}

std::string encode(const Arrival& arrival) {
  std::string bytes;
  put(bytes, arrival.rank);
  put(bytes, arrival.nonce);
  return bytes;
}

Arrival decode_arrival(std::string_view key, std::string_view bytes) {
  RecordReader reader = reader_of(key, bytes);
  Arrival arrival;
  arrival.rank = reader.number32(transport::kMaxRanks - 1);
  arrival.nonce = reader.number();
  reader.expect_end();
  return arrival;
}

std::string compare(std::string_view there, Secret secret, std::string_view here) {
  switch (secret) {
    case Secret::kSame:
      return fmt::format("{} has the secret of {}", there, here);
    case Secret::kOther:
      return fmt::format("{} has another secret than {}", there, here);
    case Secret::kOnlyThere:
      return fmt::format("{} has a secret, but {} has none", there, here);
    case Secret::kOnlyHere:
      return fmt::format("{} has no secret, but {} has one", there, here);
  }
  return "unknown";
}

std::string encode(const Answer& answer, std::string_view key, const JobKey* job) {
  const Presence& presence = answer.presence;
  std::string contents;
  put(contents, presence.rank);
  put(contents, presence.size);
  put(contents, presence.card);
  put(contents, presence.process);
  put(contents, presence.refusal);
  std::string bytes;
  put(bytes, job != nullptr ? kSealedVersion : answer.version);
  put(bytes, answer.nonce);
  if (job == nullptr) {
    return bytes + contents;
  }
  put(bytes, presence.process);
  put(bytes, job->seal(key, contents));
  return bytes;
}

Answer decode_answer(std::string_view key, std::string_view bytes, const JobKey* job) {
  RecordReader reader = reader_of(key, bytes);
  Answer answer;
  answer.version = reader.number();
  answer.nonce = reader.number();
  if (answer.version != kVersion && answer.version != kSealedVersion) {
    return answer;
  }
  Presence& presence = answer.presence;
  std::optional<std::string> opened;
  if (answer.version == kSealedVersion) {
    presence.process = reader.field();
    const std::string_view sealed = reader.field();
    reader.expect_end();
    opened = job != nullptr ? job->open(key, sealed) : std::nullopt;
    if (!opened) {
      answer.secret = job != nullptr ? Secret::kOther : Secret::kOnlyThere;
      return answer;
    }
    reader = reader_of(key, *opened);
  } else if (job != nullptr) {
    answer.secret = Secret::kOnlyHere;
  }
  presence.rank = reader.number32(transport::kMaxRanks - 1);
  presence.size = reader.number32(transport::kMaxRanks);
  presence.card = reader.field();
  presence.process = reader.field();
  presence.refusal = reader.error();
  reader.expect_end();
  return answer;
}

namespace {

std::string contents_of(const Table& table) {
  std::string bytes;
  put(bytes, table.failure);
  put(bytes, table.roll.size());
  for (std::size_t rank = 0; rank < table.roll.size(); ++rank) {
    put(bytes, table.nonces[rank]);
    put(bytes, table.roll[rank]);
  }
  return bytes;
}

}  // namespace

/// A failure is not sealed, because ranks with another secret must be able to read it.
std::string encode(const Table& table, std::string_view key, const JobKey* job) {
  const bool sealed = job != nullptr && !table.failure;
  std::string bytes;
  put(bytes, sealed ? kSealedVersion : kVersion);
  if (!sealed) {
    return bytes + contents_of(table);
  }
  put(bytes, job->seal(key, contents_of(table)));
  return bytes;
}

Table decode_table(std::string_view key, std::string_view bytes, const JobKey* job) {
  RecordReader reader = reader_of(key, bytes);
  Table table;
  const std::uint64_t version = reader.number();
  if (version != kVersion && version != kSealedVersion) {
    table.failure =
        Error(ErrorKind::kBootstrap,
              fmt::format("rank 0 uses version {} of gtopk's meeting protocol, this rank uses "
                          "{}: install the same gtopk on every host",
                          version, kVersion));
    return table;
  }
  std::optional<std::string> opened;
  if (version == kSealedVersion) {
    const std::string_view sealed = reader.field();
    reader.expect_end();
    opened = job != nullptr ? job->open(key, sealed) : std::nullopt;
    if (!opened) {
      table.failure = not_of_this_job(key);
      return table;
    }
    reader = reader_of(key, *opened);
  }
  table.failure = reader.error();
  if (job != nullptr && !opened && !table.failure) {
    table.failure = not_of_this_job(key);
    return table;
  }
  const std::uint32_t size = reader.number32(transport::kMaxRanks);
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    table.nonces.push_back(reader.number());
    table.roll.emplace_back(reader.field());
  }
  reader.expect_end();
  return table;
}

std::string encode(Nonce nonce) {
  std::string bytes;
  put(bytes, nonce);
  return bytes;
}

Nonce decode_nonce(std::string_view key, std::string_view bytes) {
  RecordReader reader = reader_of(key, bytes);
  const Nonce nonce = reader.number();
  reader.expect_end();
  return nonce;
}

std::int64_t decode_slot(std::string_view key, std::string_view bytes) {
  RecordReader reader = reader_of(key, bytes);
  const std::uint64_t slot = reader.number(std::numeric_limits<std::int64_t>::max());
  reader.expect_end();
  return static_cast<std::int64_t>(slot);
}

std::string in_time(transport::Duration after) {
  return fmt::format("in time ({:g} s)", std::chrono::duration<double>(after).count());
}

std::string describe_missing(std::string_view ranks, std::uint32_t size,
                             transport::Duration after) {
  const bool several = ranks.find(',') != std::string_view::npos;
  return fmt::format("{} {} of {} {} not arrived {}", several ? "ranks" : "rank", ranks, size,
                     several ? "have" : "has", in_time(after));
}

std::string arrival_key(std::int64_t slot) { return fmt::format("gtopk/arrival/{}", slot); }
std::string ping_key(Nonce rank) { return fmt::format("gtopk/ping/{:016x}", rank); }
std::string alive_key(Nonce leader, Nonce rank) {
  return fmt::format("gtopk/alive/{:016x}/{:016x}", leader, rank);
}
std::string table_key(Nonce leader) { return fmt::format("gtopk/table/{:016x}", leader); }
std::string missing_key(Nonce leader) { return fmt::format("gtopk/missing/{:016x}", leader); }
std::string readers_key(Nonce leader) { return fmt::format("gtopk/readers/{:016x}", leader); }

}  // namespace gtopk::meeting
