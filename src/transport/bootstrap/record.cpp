#include "src/transport/bootstrap/record.hpp"

#include <charconv>

#include <fmt/format.h>

namespace gtopk::bootstrap {

void put(std::string& record, std::string_view field) {
  record += fmt::format("{}:{}", field.size(), field);
}

void put(std::string& record, std::uint64_t number) {
  put(record, std::string_view(fmt::format("{}", number)));
}

void put(std::string& record, const std::optional<Error>& error) {
  put(record, error ? 1 + static_cast<std::uint64_t>(error->kind()) : 0);
  put(record, error ? std::string_view(error->what()) : std::string_view());
}

std::string_view RecordReader::field() {
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

std::uint64_t RecordReader::number(std::uint64_t most) {
  const std::string_view digits = field();
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc{} || end != digits.data() + digits.size() || value > most) {
    throw unreadable(fmt::format("'{}' is not a number up to {}", digits.substr(0, 32), most));
  }
  return value;
}

std::optional<Error> RecordReader::error() {
  const std::uint64_t kind = number(1 + static_cast<std::uint64_t>(ErrorKind::kUnsupported));
  const std::string_view text = field();
  if (kind == 0) {
    return std::nullopt;
  }
  return Error(static_cast<ErrorKind>(kind - 1), std::string(text));
}

void RecordReader::expect_end() const {
  if (!rest_.empty()) {
    throw unreadable(fmt::format("{} bytes are left over", rest_.size()));
  }
}

Error RecordReader::unreadable(const std::string& why) const {
  return {ErrorKind::kBootstrap, fmt::format("{} was not written by gtopk: {}", what_, why)};
}

}  // namespace gtopk::bootstrap
