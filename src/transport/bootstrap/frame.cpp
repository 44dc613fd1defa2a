#include "src/transport/bootstrap/frame.hpp"

#include <fmt/format.h>

#include "gtopk/error.hpp"

namespace gtopk::bootstrap {
namespace {

constexpr std::uint32_t kMagic = 0x31525447;  // "GTR1"

template <typename Integer>
void put_number(std::string& bytes, Integer value) {
  for (std::size_t i = 0; i < sizeof(Integer); ++i) {
    bytes.push_back(static_cast<char>(value >> (8 * i)));
  }
}

template <typename Integer>
Integer take(std::string_view bytes, std::size_t offset) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < sizeof(Integer); ++i) {
    value |= static_cast<std::uint64_t>(static_cast<unsigned char>(bytes[offset + i])) << (8 * i);
  }
  return static_cast<Integer>(value);
}

}  // namespace

Parse parse_request(std::string_view bytes, RequestView& request) {
  // Every byte of the magic received so far must be correct, so that a stranger is recognised by
  // its first bytes.
  std::string magic;
  put_number(magic, kMagic);
  const std::size_t seen = std::min(bytes.size(), magic.size());
  if (bytes.substr(0, seen) != std::string_view(magic).substr(0, seen)) {
    return Parse::kMalformed;
  }
  if (bytes.size() < kRequestHeader) {
    return Parse::kIncomplete;
  }
  const auto command = take<std::uint8_t>(bytes, 4);
  const std::size_t key_length = take<std::uint16_t>(bytes, 5);
  const std::size_t value_length = take<std::uint32_t>(bytes, 7);
  if (command < static_cast<std::uint8_t>(Command::kSet) ||
      command > static_cast<std::uint8_t>(Command::kRemove) || key_length == 0 ||
      key_length > kMaxKey || value_length > kMaxValue) {
    return Parse::kMalformed;
  }
  const std::size_t size = kRequestHeader + key_length + value_length;
  if (bytes.size() < size) {
    return Parse::kIncomplete;
  }
  request = RequestView{.command = static_cast<Command>(command),
                        .key = bytes.substr(kRequestHeader, key_length),
                        .value = bytes.substr(kRequestHeader + key_length, value_length),
                        .size = size};
  return Parse::kComplete;
}

std::string encode_request(Command command, std::string_view key, std::string_view value) {
  if (key.empty() || key.size() > kMaxKey || value.size() > kMaxValue) {
    throw Error(
        ErrorKind::kBootstrap,
        fmt::format(
            "rendezvous: key '{}' of {} bytes with a value of {} bytes: a key has 1 to {}, a "
            "value at most {} bytes",
            key.substr(0, 64), key.size(), value.size(), kMaxKey, kMaxValue));
  }
  std::string bytes;
  bytes.reserve(kRequestHeader + key.size() + value.size());
  put_number(bytes, kMagic);
  put_number(bytes, static_cast<std::uint8_t>(command));
  put_number(bytes, static_cast<std::uint16_t>(key.size()));
  put_number(bytes, static_cast<std::uint32_t>(value.size()));
  bytes.append(key).append(value);
  return bytes;
}

std::string encode_response(Result result, std::string_view value) {
  return encode_response_header(result, value.size()).append(value);
}

std::string encode_response_header(Result result, std::size_t value_length) {
  std::string bytes;
  put_number(bytes, static_cast<std::uint8_t>(result));
  put_number(bytes, static_cast<std::uint32_t>(value_length));
  return bytes;
}

std::optional<ResponseHeader> parse_response(const std::array<char, kResponseHeader>& bytes) {
  const std::string_view view(bytes.data(), bytes.size());
  const auto result = take<std::uint8_t>(view, 0);
  const std::size_t length = take<std::uint32_t>(view, 1);
  if (result < static_cast<std::uint8_t>(Result::kOk) ||
      result > static_cast<std::uint8_t>(Result::kNothing) || length > kMaxValue) {
    return std::nullopt;
  }
  return ResponseHeader{.result = static_cast<Result>(result), .value_length = length};
}

std::string encode_integer(std::int64_t value) {
  std::string bytes;
  put_number(bytes, static_cast<std::uint64_t>(value));
  return bytes;
}

std::optional<std::int64_t> decode_integer(std::string_view bytes) {
  if (bytes.size() != sizeof(std::int64_t)) {
    return std::nullopt;
  }
  return static_cast<std::int64_t>(take<std::uint64_t>(bytes, 0));
}

}  // namespace gtopk::bootstrap
