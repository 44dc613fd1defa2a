#include "communicator/meeting_record.hpp"

#include <charconv>
#include <limits>
#include <random>

#include <fmt/format.h>

#include "transport/base/tag.hpp"

namespace gtopk::meeting {
namespace {

void put(std::string& bytes, std::string_view field) {
  bytes += fmt::format("{}:{}", field.size(), field);
}

void put(std::string& bytes, std::uint64_t number) { put(bytes, fmt::format("{}", number)); }

/// Takes fields off the front, or says which key holds something else.
class Reader {
 public:
  Reader(std::string_view key, std::string_view bytes) : key_(key), rest_(bytes) {}

  std::string_view field() {
    std::size_t length = 0;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), length);
    const auto digits = static_cast<std::size_t>(end - rest_.data());
    if (error != std::errc{} || digits >= rest_.size() || *end != ':' ||
        length > rest_.size() - digits - 1) {
      throw unreadable("a field ends early");
    }
    const std::string_view value = rest_.substr(digits + 1, length);
    rest_.remove_prefix(digits + 1 + length);
    return value;
  }

  std::uint64_t number(std::uint64_t most = std::numeric_limits<std::uint64_t>::max()) {
    const std::string_view digits = field();
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc{} || end != digits.data() + digits.size() || value > most) {
      throw unreadable(fmt::format("'{}' is no number up to {}", digits.substr(0, 32), most));
    }
    return value;
  }

  std::uint32_t number32(std::uint32_t most) { return static_cast<std::uint32_t>(number(most)); }

  void expect_end() const {
    if (!rest_.empty()) throw unreadable(fmt::format("{} bytes are left over", rest_.size()));
  }

 private:
  [[nodiscard]] Error unreadable(const std::string& why) const {
    return {ErrorKind::kBootstrap,
            fmt::format("the store's '{}' is none that gtopk wrote: {}", key_, why)};
  }

  std::string_view key_;
  std::string_view rest_;
};

void put(std::string& bytes, const std::optional<Error>& error) {
  put(bytes, error ? 1 + static_cast<std::uint64_t>(error->kind()) : 0);
  put(bytes, error ? std::string_view(error->what()) : std::string_view());
}

std::optional<Error> read_error(Reader& reader) {
  const auto kind = reader.number(1 + static_cast<std::uint64_t>(ErrorKind::kUnsupported));
  const std::string_view text = reader.field();
  if (kind == 0) return std::nullopt;
  return Error(static_cast<ErrorKind>(kind - 1), std::string(text));
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
  Reader reader(key, bytes);
  Arrival arrival;
  arrival.rank = reader.number32(transport::kMaxRanks - 1);
  arrival.nonce = reader.number();
  reader.expect_end();
  return arrival;
}

std::string encode(const Answer& answer) {
  const Presence& presence = answer.presence;
  std::string bytes;
  put(bytes, answer.version);
  put(bytes, answer.nonce);
  put(bytes, presence.rank);
  put(bytes, presence.size);
  put(bytes, presence.id);
  put(bytes, presence.card);
  put(bytes, presence.identity);
  put(bytes, presence.process);
  put(bytes, presence.refusal);
  return bytes;
}

Answer decode_answer(std::string_view key, std::string_view bytes) {
  Reader reader(key, bytes);
  Answer answer;
  answer.version = reader.number();
  answer.nonce = reader.number();
  if (answer.version != kVersion) return answer;
  Presence& presence = answer.presence;
  presence.rank = reader.number32(transport::kMaxRanks - 1);
  presence.size = reader.number32(transport::kMaxRanks);
  presence.id = reader.number32(transport::kMaxGroups - 1);
  presence.card = reader.field();
  presence.identity = reader.number();
  presence.process = reader.field();
  presence.refusal = read_error(reader);
  reader.expect_end();
  return answer;
}

std::string encode(const Table& table) {
  std::string bytes;
  put(bytes, kVersion);
  put(bytes, table.failure);
  put(bytes, table.roll.size());
  for (std::size_t rank = 0; rank < table.roll.size(); ++rank) {
    put(bytes, table.nonces[rank]);
    put(bytes, table.roll[rank].card);
    put(bytes, table.roll[rank].identity);
    put(bytes, table.roll[rank].id);
  }
  return bytes;
}

Table decode_table(std::string_view key, std::string_view bytes) {
  Reader reader(key, bytes);
  Table table;
  if (const std::uint64_t version = reader.number(); version != kVersion) {
    table.failure =
        Error(ErrorKind::kBootstrap,
              fmt::format("rank 0 meets by version {} of gtopk's protocol, this rank by "
                          "{}: install the same gtopk on every host",
                          version, kVersion));
    return table;
  }
  table.failure = read_error(reader);
  const std::uint32_t size = reader.number32(transport::kMaxRanks);
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    table.nonces.push_back(reader.number());
    Member member;
    member.card = reader.field();
    member.identity = reader.number();
    member.id = reader.number32(transport::kMaxGroups - 1);
    table.roll.push_back(std::move(member));
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
  Reader reader(key, bytes);
  const Nonce nonce = reader.number();
  reader.expect_end();
  return nonce;
}

std::int64_t decode_slot(std::string_view key, std::string_view bytes) {
  Reader reader(key, bytes);
  const std::uint64_t slot = reader.number(std::numeric_limits<std::int64_t>::max());
  reader.expect_end();
  return static_cast<std::int64_t>(slot);
}

std::string describe_missing(std::string_view ranks, std::uint32_t size) {
  const bool several = ranks.find(',') != std::string_view::npos;
  return fmt::format("{} {} of {} {} not arrived in time", several ? "ranks" : "rank", ranks, size,
                     several ? "have" : "has");
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
