// Bootstrap: this process as a client of the PMIx server that started it: who it is in its job, and
// what processes tell one another by Put, Commit and Get. None of PMIx's collectives is called, so
// nobody waits for a process that is not asked for something. It knows no group.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "src/transport/base/clock.hpp"
#include "src/transport/bootstrap/pmix_library.hpp"

namespace gtopk::bootstrap {

class PmixClient {
 public:
  /// The process's only one, as OpenPMIx 5 cannot be initialised twice: made at the first call,
  /// finalised when the process exits. Null where no server started this process, found out in
  /// microseconds, and in a forked child of one that had it.
  [[nodiscard]] static PmixClient* get();
  /// The same, never null: throws Error{kBootstrap} that says why there is none.
  [[nodiscard]] static PmixClient& required();
  /// Why get() is null although there are signs of a server; else empty.
  [[nodiscard]] static std::string why_not();

  PmixClient(const PmixClient&) = delete;
  PmixClient& operator=(const PmixClient&) = delete;
  PmixClient(PmixClient&&) = delete;
  PmixClient& operator=(PmixClient&&) = delete;
  ~PmixClient();

  [[nodiscard]] std::uint32_t rank() const { return self_.rank; }
  [[nodiscard]] std::uint32_t size() const { return size_; }
  /// "OpenPMIx 4.2.2, job prterun-node7-399@1".
  [[nodiscard]] const std::string& description() const { return description_; }

  /// Of this process on its host; nothing where the launcher does not say.
  [[nodiscard]] std::optional<std::uint32_t> local_rank();
  [[nodiscard]] std::optional<std::uint32_t> local_size();

  /// Makes `bytes` known under `key` to every process of the job. A key is put once. Throws
  /// Error{kBootstrap}.
  void put(std::string_view key, std::string_view bytes);

  /// What `rank` has put under `key`, waiting until it has; nothing when `at_most` passes first.
  /// Throws Error{kBootstrap} when the server fails.
  [[nodiscard]] std::optional<std::string> find(std::uint32_t rank, std::string_view key,
                                                transport::Duration at_most);

 private:
  struct Session;
  struct Answer;
  /// What this host knows of a rank; old: it may have put more since.
  enum class Known : std::uint8_t { kGood, kOld };

  PmixClient();
  [[nodiscard]] static Session& session();
  [[nodiscard]] std::optional<std::uint32_t> number(std::uint32_t rank, const char* key);
  [[nodiscard]] std::optional<Answer> ask(std::uint32_t rank, std::string_view key,
                                          transport::Duration at_most, Known known);

  pmix::Library library_;
  pmix::Process self_;
  std::uint32_t size_ = 0;
  std::string description_;
  std::mutex mutex_;  ///< of put and commit, which are two calls
};

}  // namespace gtopk::bootstrap
