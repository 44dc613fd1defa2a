/// @file
/// A collective as a value: its name, what ranks must agree on, its order, and its body.
/// collectives.hpp makes the built-in ones; make yours the same way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gtopk/error.hpp"
#include "gtopk/memory.hpp"
#include "gtopk/types.hpp"

namespace gtopk {

namespace engine {
template <class T>
class Task;
class GroupView;
class PerGroupState;
}  // namespace engine

/// The arguments that must be the same on every rank of a group: a collective's name and its named
/// fields, in order. The first messages carry a fingerprint; if fingerprints differ, the text is
/// fetched from the peer. Names and words must live as long as the program.
class Agreement {
 public:
  /// An agreement has at most this many fields; one more throws Error{kInvalidArgument}.
  static constexpr std::size_t kMaxFields = 16;

  Agreement() = default;
  /// Describes a call of the collective of this name, without fields.
  explicit Agreement(std::string_view collective) : collective_(collective) {}

  /// Adds a number.
  Agreement& number(std::string_view name, std::uint64_t value);
  /// Adds a word, such as the name of an operation.
  Agreement& word(std::string_view name, std::string_view value);
  /// Adds an element type by its name; an opaque type is printed with its code.
  Agreement& type(std::string_view name, DataType value);
  /// Adds a list. If all values are equal, it is stored as a single number, whatever its length. At
  /// most one list per agreement may have differing values.
  Agreement& numbers(std::string_view name, std::span<const std::uint64_t> values);

  /// Equal agreements have equal fingerprints in every process.
  [[nodiscard]] std::uint64_t fingerprint() const;
  /// The agreement as text, such as "all_reduce(d=100, dtype=float32, op=SUM)".
  [[nodiscard]] std::string text() const;
  /// Whether this agreement names no collective.
  [[nodiscard]] bool empty() const { return collective_.empty(); }
  /// The number or list stored in field `name`; empty if there is no numeric field of that name.
  [[nodiscard]] std::vector<std::uint64_t> numbers_of(std::string_view name) const;
  /// The word stored in field `name`; empty if there is none.
  [[nodiscard]] std::string_view word_of(std::string_view name) const;

 private:
  struct Field {
    std::string_view name;
    /// The word is printed before the number, which then stands in parentheses. A field without a
    /// number is printed as the word alone.
    std::string_view word;
    std::uint64_t number = 0;
    bool has_number = false;
    bool has_list = false;  ///< the list is in list_; `number` is its fingerprint
  };
  Agreement& add(const Field& field);
  [[nodiscard]] const Field* find(std::string_view name) const;

  std::string_view collective_;
  std::vector<Field> fields_;
  std::shared_ptr<const std::vector<std::uint64_t>> list_;
};

/// When an operation may start, relative to the other operations of its group.
enum class Ordering : std::uint8_t {
  /// Operations are numbered in call order, which is the same on every rank; many may be in flight.
  kConcurrent,
  /// Operations are numbered likewise, but each starts only after all earlier collectives of this
  /// rank have ended or wait at a gate with nothing left to exchange.
  kAfterEarlier,
  /// Point-to-point messages are matched by their own tag and have no number.
  kUnnumbered,
};

/// The group in which a collective is about to run, as this rank sees it.
struct GroupShape {
  std::string_view name;   ///< the group's name
  std::uint32_t rank = 0;  ///< this process's rank
  std::uint32_t size = 1;  ///< number of ranks
  /// For each rank, whether messages to and from it may lie in device memory. Empty means false for
  /// all ranks.
  std::span<const std::uint8_t> reached_from_devices{};

  /// Throws Error{kInvalidArgument} if there is no such rank. `role`, such as "the root", is used
  /// in the message.
  void check_rank(std::uint32_t other, std::string_view role) const;
  /// Throws Error{kInvalidArgument}, naming `operation`, unless messages to and from that rank, or
  /// all ranks, may lie in this memory.
  void check_moved(Memory memory, std::string_view operation,
                   std::optional<std::uint32_t> other = std::nullopt) const;
  /// Throws the same error if memory that `operation` reads or writes is not the host's; `why` says
  /// what the operation does.
  void check_host(Memory memory, std::string_view operation, std::string_view why) const;
};

/// One rank's call of a collective, for Communicator::run.
struct Collective {
  /// The name as the user called it: "sparse_all_reduce(gtopk)".
  std::string name;
  /// The arguments that must be the same on all ranks.
  Agreement agreement;
  /// When the operation may start.
  Ordering ordering = Ordering::kConcurrent;
  /// Bytes that this rank passes in or has capacity for; recorded if the agreement does not say.
  std::uint64_t bytes = 0;
  /// Checks arguments that depend on the group; throws Error{kInvalidArgument}. May be empty.
  std::function<void(const GroupShape&)> check;
  /// Runs on the engine thread; src/engine/group_view.hpp says what it can do.
  std::function<engine::Task<void>(engine::GroupView&)> body;
  /// Called on the engine thread if the collective has failed, even if it never started, with the
  /// group's state, the collective's number in the group, and the error. May be empty.
  std::function<void(engine::PerGroupState&, std::uint64_t number, const Error&)> failed;
};

}  // namespace gtopk
