// Test support: ways for the ranks of a job to find one another, a row each; tests run
// over every one.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gtopk/directory.hpp"

namespace gtopk::test {

/// The bootstrap of one job, as its ranks see it. Ranks are threads.
class Bootstrap {
 public:
  Bootstrap() = default;
  Bootstrap(const Bootstrap&) = delete;
  Bootstrap& operator=(const Bootstrap&) = delete;
  Bootstrap(Bootstrap&&) = delete;
  Bootstrap& operator=(Bootstrap&&) = delete;
  virtual ~Bootstrap() = default;

  /// One rank's directory.
  [[nodiscard]] virtual std::shared_ptr<Directory> join() = 0;
  /// How many entries it holds, if they can be counted.
  [[nodiscard]] virtual std::optional<std::size_t> entries() { return std::nullopt; }
};

struct BootstrapKind {
  std::string name;
  std::function<std::unique_ptr<Bootstrap>()> make;
};

[[nodiscard]] const std::vector<BootstrapKind>& bootstraps();

}  // namespace gtopk::test
