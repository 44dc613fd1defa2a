// Sparse, value: rows by name. The initial rows are always there; programs can add their own. It
// does not know what a row does.
#pragma once

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "gtopk/error.hpp"
#include "gtopk/types.hpp"

namespace gtopk::sparse {

/// Row has `name` and `description`, and lives as long as the program.
template <class Row>
class Registry {
 public:
  /// `what` is the name of the option, which says what a row is. `also` is a value of the option
  /// that is not a row; errors list it.
  Registry(std::string_view what, std::initializer_list<const Row*> rows,
           std::string_view also = {})
      : what_(what), also_(also), rows_(rows) {}

  /// Returns the row of that name. If there is none, throws Error{kInvalidArgument} that lists the
  /// available names.
  [[nodiscard]] const Row& find(std::string_view name) const {
    const std::lock_guard lock(mutex_);
    const auto row = std::ranges::find(rows_, name, &Row::name);
    if (row == rows_.end()) {
      throw Error(ErrorKind::kInvalidArgument, fmt::format("unknown {} '{}'; available: {}", what_,
                                                           name, fmt::join(names(), ", ")));
    }
    return **row;
  }

  /// The rows for which `belongs` holds, in order.
  template <class Predicate>
  [[nodiscard]] std::vector<Choice> choices_if(Predicate belongs) const {
    const std::lock_guard lock(mutex_);
    std::vector<Choice> choices;
    choices.reserve(rows_.size());
    for (const Row* row : rows_) {
      if (std::invoke(belongs, *row)) {
        choices.push_back({row->name, row->description});
      }
    }
    return choices;
  }

  [[nodiscard]] std::vector<Choice> choices() const {
    return choices_if([](const Row& /*row*/) { return true; });
  }

  /// Adds a row, or replaces the row of the same name.
  void add(const Row& row) {
    const std::lock_guard lock(mutex_);
    std::erase_if(rows_, [&](const Row* other) { return other->name == row.name; });
    rows_.push_back(&row);
  }

 private:
  [[nodiscard]] std::vector<std::string_view> names() const {
    std::vector<std::string_view> names;
    names.reserve(rows_.size());
    for (const Row* row : rows_) {
      names.push_back(row->name);
    }
    if (!also_.empty()) {
      names.push_back(also_);
    }
    return names;
  }

  std::string_view what_;
  std::string_view also_;
  mutable std::mutex mutex_;
  std::vector<const Row*> rows_;
};

}  // namespace gtopk::sparse
