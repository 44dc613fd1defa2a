#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "gtopk/collective.hpp"
#include "gtopk/error.hpp"
#include "src/numbers/element_types.hpp"

namespace gtopk {
namespace {

/// The finalizer of SplitMix64 (Steele, Lea and Flood 2014): every input bit affects every output
/// bit.
std::uint64_t mix(std::uint64_t state, std::uint64_t value) {
  std::uint64_t z = (state ^ value) + 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31U);
}

std::uint64_t mix(std::uint64_t state, std::string_view text) {
  state = mix(state, text.size());
  for (std::size_t at = 0; at < text.size(); at += sizeof(std::uint64_t)) {
    std::uint64_t piece = 0;
    std::memcpy(&piece, text.data() + at, std::min(sizeof piece, text.size() - at));
    state = mix(state, piece);
  }
  return state;
}

/// This many numbers of a list appear in an error's text; the rest is summarised by a fingerprint.
constexpr std::size_t kListed = 8;

std::string text_of(std::span<const std::uint64_t> list, std::uint64_t fingerprint) {
  if (list.size() <= kListed) {
    return fmt::format("[{}]", fmt::join(list, ", "));
  }
  return fmt::format("[{}, ... {} in all, fingerprint {:016x}]",
                     fmt::join(list.first(kListed), ", "), list.size(), fingerprint);
}

}  // namespace

Agreement& Agreement::add(const Field& field) {
  if (fields_.size() == kMaxFields) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("{} has more than {} fields to agree on", collective_, kMaxFields));
  }
  fields_.reserve(kMaxFields);
  fields_.push_back(field);
  return *this;
}

Agreement& Agreement::number(std::string_view name, std::uint64_t value) {
  return add({.name = name, .word = {}, .number = value, .has_number = true});
}

Agreement& Agreement::numbers(std::string_view name, std::span<const std::uint64_t> values) {
  if (values.empty()) {
    return number(name, 0);
  }
  if (std::ranges::all_of(values, [&](std::uint64_t value) { return value == values.front(); })) {
    return number(name, values.front());
  }
  if (list_ != nullptr) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("{} has more than one list to agree on", collective_));
  }
  list_ = std::make_shared<const std::vector<std::uint64_t>>(values.begin(), values.end());
  std::uint64_t fingerprint = 0;
  for (const std::uint64_t value : values) {
    fingerprint = mix(fingerprint, value);
  }
  return add({.name = name, .word = {}, .number = fingerprint, .has_list = true});
}

Agreement& Agreement::word(std::string_view name, std::string_view value) {
  return add({.name = name, .word = value});
}

Agreement& Agreement::type(std::string_view name, DataType value) {
  const auto code = static_cast<std::uint8_t>(value);
  if (value == opaque_type(code)) {
    return add({.name = name, .word = "opaque", .number = code & 127U, .has_number = true});
  }
  return word(name, to_string(value));
}

std::uint64_t Agreement::fingerprint() const {
  std::uint64_t state = mix(0, collective_);
  for (const Field& field : fields_) {
    state = mix(mix(mix(state, field.name), field.word), field.number);
  }
  return state;
}

const Agreement::Field* Agreement::find(std::string_view name) const {
  const auto at = std::ranges::find(fields_, name, &Field::name);
  return at == fields_.end() ? nullptr : &*at;
}

std::vector<std::uint64_t> Agreement::numbers_of(std::string_view name) const {
  const Field* const field = find(name);
  if (field == nullptr) {
    return {};
  }
  if (field->has_list) {
    return *list_;
  }
  return field->has_number ? std::vector{field->number} : std::vector<std::uint64_t>{};
}

std::string_view Agreement::word_of(std::string_view name) const {
  const Field* const field = find(name);
  return field == nullptr ? std::string_view() : field->word;
}

std::string Agreement::text() const {
  std::string text(collective_);
  const char* separator = "(";
  for (const Field& field : fields_) {
    text += fmt::format("{}{}=", separator, field.name);
    if (field.has_list) {
      text += text_of(*list_, field.number);
    } else if (!field.has_number) {
      text += field.word;
    } else if (field.word.empty()) {
      text += fmt::to_string(field.number);
    } else {
      text += fmt::format("{}({})", field.word, field.number);
    }
    separator = ", ";
  }
  return text + (fields_.empty() ? "()" : ")");
}

void GroupShape::check_rank(std::uint32_t other, std::string_view role) const {
  if (other >= size) {
    throw Error(
        ErrorKind::kInvalidArgument,
        fmt::format("{} is rank {}, group '{}' has ranks 0..{}", role, other, name, size - 1));
  }
}

void GroupShape::check_moved(Memory memory, std::string_view operation,
                             std::optional<std::uint32_t> other) const {
  if (memory.is_host()) {
    return;
  }
  const auto check = [&](std::uint32_t each) {
    if (each < reached_from_devices.size() && reached_from_devices[each] != 0) {
      return;
    }
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("{} on rank {} of group '{}' expected host memory, as the transport "
                            "takes no other kind between this rank and rank {}; seen: {}",
                            operation, rank, name, each, to_string(memory)));
  };
  if (other) {
    check(*other);
    return;
  }
  for (std::uint32_t each = 0; each < size; ++each) {
    if (each != rank) {
      check(each);
    }
  }
}

void GroupShape::check_host(Memory memory, std::string_view operation, std::string_view why) const {
  if (!memory.is_host()) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("{} on rank {} of group '{}' expected host memory, as it {}; seen: {}",
                            operation, rank, name, why, to_string(memory)));
  }
}

}  // namespace gtopk
