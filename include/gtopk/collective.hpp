// Public surface: a collective as a value: its name, what ranks must agree on, how it is ordered,
// and its body. collectives.hpp makes those that are there; one of your own is made the same way.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gtopk/types.hpp"

namespace gtopk {

namespace engine {
template <class T>
class Task;
class GroupView;
}  // namespace engine

/// What every rank of a group must have asked for alike: a collective's name and its named fields,
/// in order. A fingerprint of it travels with the first messages; the text is fetched from the
/// other side where fingerprints differ. Names and words must live as long as the program.
class Agreement {
 public:
  static constexpr std::size_t kMaxFields = 16;

  Agreement() = default;
  explicit Agreement(std::string_view collective) : collective_(collective) {}

  Agreement& number(std::string_view name, std::uint64_t value);
  Agreement& word(std::string_view name, std::string_view value);
  Agreement& type(std::string_view name, DataType value);
  /// A list, as one number where all of it are the same, however many. One list that is not, at
  /// most.
  Agreement& numbers(std::string_view name, std::span<const std::uint64_t> values);

  /// Equal for equal agreements, the same in every process.
  [[nodiscard]] std::uint64_t fingerprint() const;
  /// "all_reduce(d=100, dtype=float32, op=SUM)"
  [[nodiscard]] std::string text() const;
  [[nodiscard]] bool empty() const { return collective_.empty(); }
  /// Of the field of that name: its number or list; none where there is no such field of numbers.
  [[nodiscard]] std::vector<std::uint64_t> numbers_of(std::string_view name) const;
  /// Likewise its word, or empty.
  [[nodiscard]] std::string_view word_of(std::string_view name) const;

 private:
  struct Field {
    std::string_view name;
    /// In front of the number, which then stands in brackets; alone when there is none.
    std::string_view word;
    std::uint64_t number = 0;
    bool has_number = false;
    bool has_list = false;  ///< list_, of which the number is a fingerprint
  };
  Agreement& add(const Field& field);
  [[nodiscard]] const Field* find(std::string_view name) const;

  std::string_view collective_;
  std::array<Field, kMaxFields> fields_{};
  std::size_t size_ = 0;
  std::shared_ptr<const std::vector<std::uint64_t>> list_;
};

enum class Ordering : std::uint8_t {
  /// Numbered in the order of the calls, which is the same on every rank; many in flight at once.
  kConcurrent,
  /// Likewise, and starts when every earlier one of this rank has ended.
  kAfterEarlier,
  /// Point-to-point: matched by its own tag, takes no number.
  kUnnumbered,
};

/// The group that a collective is about to run in, as this rank sees it.
struct GroupShape {
  std::string_view name;
  std::uint32_t rank = 0;
  std::uint32_t size = 1;

  /// Throws Error{kInvalidArgument} where there is no such rank; `role`: "the root".
  void check_rank(std::uint32_t other, std::string_view role) const;
};

/// One rank's call of a collective, to be handed to Communicator::run.
struct Collective {
  /// As the user called it: "sparse_all_reduce(gtopk)".
  std::string name;
  Agreement agreement;
  Ordering ordering = Ordering::kConcurrent;
  /// What this rank hands in or has room for, for records, where the agreement does not say it.
  std::uint64_t bytes = 0;
  /// What can only be checked in a group; throws Error{kInvalidArgument}. May be empty.
  std::function<void(const GroupShape&)> check;
  /// Runs on the engine's thread; src/engine/group_view.hpp says what it can do.
  std::function<engine::Task<void>(engine::GroupView&)> body;
};

}  // namespace gtopk
