// Bootstrap: this process as a client of the PMIx server that started it: its rank in the job, and
// data exchanged by Put, Commit and Get. It calls none of PMIx's collectives, so no process waits
// for another that is not needed. It does not know groups.
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
  /// Returns the process's only client, because OpenPMIx 5 cannot be initialised twice. It is
  /// created by the first call and finalised at exit. Returns null if no server started this
  /// process (checked in microseconds), and in a forked child of a process that had a client.
  [[nodiscard]] static PmixClient* get();
  /// Returns the same client but never null: throws Error{kBootstrap} that says why there is none.
  [[nodiscard]] static PmixClient& required();
  /// Says why get() is null although there are signs of a server; otherwise returns an empty
  /// string.
  [[nodiscard]] static std::string why_not();

  PmixClient(const PmixClient&) = delete;
  PmixClient& operator=(const PmixClient&) = delete;
  PmixClient(PmixClient&&) = delete;
  PmixClient& operator=(PmixClient&&) = delete;
  ~PmixClient();

  [[nodiscard]] std::uint32_t rank() const { return self_.rank; }
  [[nodiscard]] std::uint32_t size() const { return size_; }
  /// The client as text: "OpenPMIx 4.2.2, job prterun-node7-399@1".
  [[nodiscard]] const std::string& description() const { return description_; }

  /// This process's number on its host; nullopt if the launcher does not provide it.
  [[nodiscard]] std::optional<std::uint32_t> local_rank();
  [[nodiscard]] std::optional<std::uint32_t> local_size();

  /// Publishes `bytes` under `key` to every process of the job. Each key is put once. Throws
  /// Error{kBootstrap}.
  void put(std::string_view key, std::string_view bytes);

  /// Waits until `rank` has put `key` and returns the value; nullopt if `at_most` passes first.
  /// Throws Error{kBootstrap} if the server fails.
  [[nodiscard]] std::optional<std::string> find(std::uint32_t rank, std::string_view key,
                                                transport::Duration at_most);

 private:
  struct Session;
  struct Answer;
  /// How good this host's data about a rank is. If old, the rank may have put more since.
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
  std::mutex mutex_;  ///< makes put and commit, two calls, atomic
};

}  // namespace gtopk::bootstrap
