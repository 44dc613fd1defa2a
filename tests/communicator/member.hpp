// Test support: a forked rank as a member of a group, through the public interface
// only, and operations that can be waited for. It knows no test case.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "gtopk/communicator.hpp"
#include "gtopk/error.hpp"
#include "gtopk/key_value_store.hpp"
#include "tests/support/forked_ranks.hpp"
#include "tests/support/sanitized.hpp"

namespace gtopk::test {

/// No operation of these tests may take longer, however busy the machine.
inline constexpr std::chrono::seconds kWatchdog{60};

/// The two networks that every rank can have. Values of UCX_TLS.
inline constexpr const char* kTcp = "tcp,self";
inline constexpr const char* kSharedMemory = "posix,sysv,self";
[[nodiscard]] std::string name_of_transport(std::string_view tls);

/// Sanitizers make everything several times slower.
using support::kSanitized;

/// How an operation ended on this rank.
struct Ending {
  std::optional<ErrorKind> error;
  std::string text;  ///< of the error

  [[nodiscard]] bool good() const { return !error; }
};

/// One operation, from its call to its end. It fails the rank if it was called but never waited
/// for.
class Pending {
 public:
  Pending() : state_(std::make_shared<State>()) {}
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;
  Pending(Pending&&) = delete;
  Pending& operator=(Pending&&) = delete;
  ~Pending();

  /// The argument for the communicator; `then` is called on the engine's thread.
  [[nodiscard]] Call call(std::optional<std::chrono::nanoseconds> timeout = std::nullopt,
                          std::function<void()> then = {}) const;
  /// Throws std::runtime_error, which fails the rank, if the time runs out first.
  [[nodiscard]] Ending wait(std::chrono::nanoseconds at_most = kWatchdog) const;

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<Ending> ending;
    bool owed = false;  ///< called but not yet waited for
  };
  std::shared_ptr<State> state_;
};

/// Returns when `ranks` ranks have reached this point.
void wait_for_all(KeyValueStore& store, const std::string& place, int ranks);

/// This process with UCX and its engine, and one group. Memory used by operations must outlive it.
class Member {
 public:
  /// In the group of all ranks of the job. host: as in Meeting.
  explicit Member(const ForkedRank& self, const std::string& host = {});
  /// In one of several groups.
  Member(const std::shared_ptr<KeyValueStore>& job, const std::string& group, std::uint32_t rank,
         std::uint32_t size, const std::string& host = {});

  [[nodiscard]] Communicator& group() { return *group_; }
  [[nodiscard]] const Process& process() const { return *process_; }
  /// Ends group and process, as at the end of a program; returns how long it took.
  std::chrono::nanoseconds leave();

 private:
  std::shared_ptr<Process> process_;
  std::unique_ptr<Communicator> group_;
};

}  // namespace gtopk::test
