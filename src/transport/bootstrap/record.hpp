// Bootstrap: how ranks encode records for others: fields as "length:bytes", numbers as decimal
// digits, all validated when read. It does not know the fields of any record.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "gtopk/error.hpp"

namespace gtopk::bootstrap {

void put(std::string& record, std::string_view field);
void put(std::string& record, std::uint64_t number);
void put(std::string& record, const std::optional<Error>& error);

/// Takes fields off the front of a record. Throws Error{kBootstrap} if the bytes are invalid; the
/// error names `what`, such as "the store's 'gtopk/first'".
class RecordReader {
 public:
  RecordReader(std::string what, std::string_view bytes) : what_(std::move(what)), rest_(bytes) {}

  std::string_view field();
  std::uint64_t number(std::uint64_t most = std::numeric_limits<std::uint64_t>::max());
  std::uint32_t number32(std::uint32_t most) { return static_cast<std::uint32_t>(number(most)); }
  std::optional<Error> error();
  void expect_end() const;

 private:
  [[nodiscard]] Error unreadable(const std::string& why) const;

  std::string what_;
  std::string_view rest_;
};

}  // namespace gtopk::bootstrap
