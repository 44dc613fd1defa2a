// Bootstrap: the bytes of the TCP rendezvous, little-endian:
//   request   magic 4 | command 1 | key length 2 | value length 4 | key | value
//   response  result 1 | value length 4 | value
// A get's value is the milliseconds to wait for the key, an add's its delta, 8 bytes each.
// Every length is checked before anything is read or kept. It does not use sockets.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gtopk::bootstrap {

inline constexpr std::size_t kMaxKey = 1024;
inline constexpr std::size_t kMaxValue = std::size_t{4} << 20U;
inline constexpr std::size_t kRequestHeader = 11;
inline constexpr std::size_t kResponseHeader = 5;

enum class Command : std::uint8_t { kSet = 1, kGet = 2, kAdd = 3, kRemove = 4 };
enum class Result : std::uint8_t {
  kOk = 1,
  kRefused = 2,  ///< the store is full
  kNothing = 3,  ///< the key was not set in time
};

struct RequestView {
  Command command = Command::kGet;
  std::string_view key;
  std::string_view value;
  std::size_t size = 0;  ///< size of the whole request in bytes
};

enum class Parse : std::uint8_t { kComplete, kIncomplete, kMalformed };

/// Parses the request at the start of `bytes`; `request` is a view of them and is set only for
/// kComplete.
[[nodiscard]] Parse parse_request(std::string_view bytes, RequestView& request);

/// Encodes a request. Throws Error{kBootstrap} for a key or value over the limits.
[[nodiscard]] std::string encode_request(Command command, std::string_view key,
                                         std::string_view value);

[[nodiscard]] std::string encode_response(Result result, std::string_view value);
/// Encodes the start of a response; a value of that many bytes follows separately.
[[nodiscard]] std::string encode_response_header(Result result, std::size_t value_length);

struct ResponseHeader {
  Result result = Result::kRefused;
  std::size_t value_length = 0;
};
/// Parses the start of a response. Returns nullopt if it does not belong to this protocol.
[[nodiscard]] std::optional<ResponseHeader> parse_response(
    const std::array<char, kResponseHeader>& bytes);

/// Times, and a counter's delta and sum, are encoded as 8 bytes.
[[nodiscard]] std::string encode_integer(std::int64_t value);
[[nodiscard]] std::optional<std::int64_t> decode_integer(std::string_view bytes);

}  // namespace gtopk::bootstrap
