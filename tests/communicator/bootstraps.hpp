// Test support of this room: ways in which the ranks of a job find one another, a row each, for the
// tests that run over every one.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gtopk/directory.hpp"

namespace gtopk::test {

/// One job's, as its ranks see it. They are threads.
class Bootstrap {
 public:
  Bootstrap() = default;
  Bootstrap(const Bootstrap&) = delete;
  Bootstrap& operator=(const Bootstrap&) = delete;
  Bootstrap(Bootstrap&&) = delete;
  Bootstrap& operator=(Bootstrap&&) = delete;
  virtual ~Bootstrap() = default;

  /// One rank's way to it.
  [[nodiscard]] virtual std::shared_ptr<Directory> join() = 0;
  /// What lies in it, where that can be counted.
  [[nodiscard]] virtual std::optional<std::size_t> entries() { return std::nullopt; }
};

struct BootstrapKind {
  std::string name;
  std::function<std::unique_ptr<Bootstrap>()> make;
};

[[nodiscard]] const std::vector<BootstrapKind>& bootstraps();

}  // namespace gtopk::test
