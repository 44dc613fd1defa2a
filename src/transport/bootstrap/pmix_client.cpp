#include "src/transport/bootstrap/pmix_client.hpp"

#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "gtopk/error.hpp"
#include "src/transport/base/log.hpp"
#include "src/transport/base/tag.hpp"

namespace gtopk::bootstrap {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

// These names are defined by the standard.
constexpr const char* kServerVariable = "PMIX_NAMESPACE";
constexpr const char* kTimeout = "pmix.timeout";
constexpr const char* kRefreshCache = "pmix.get.refresh";
constexpr const char* kJobSize = "pmix.job.size";
constexpr const char* kLocalRank = "pmix.lrank";
constexpr const char* kLocalSize = "pmix.local.size";
constexpr pmix::Status kErrTimeout = -24;
constexpr pmix::Status kErrNotFound = -46;

/// Facts about the job are available before its processes start.
constexpr seconds kJobFact{10};
/// A server may wait for a key or report at once that it is missing; and OpenPMIx 5.0.11's server
/// never answered one in a few dozen gets that arrived just before the key. So gets are short and
/// repeated.
constexpr seconds kSlice{1};
constexpr std::chrono::milliseconds kLongestPause{50};
constexpr std::chrono::hours kForever{24 * 365};

pmix::Info info(std::string_view key, pmix::Value value) {
  pmix::Info info;
  key.copy(info.key.data(), info.key.size() - 1);
  info.value = value;
  return info;
}

pmix::Value of(int number) {
  pmix::Value value;
  value.type = pmix::Type::kInt;
  value.integer = number;
  return value;
}

pmix::Value of(bool flag) {
  pmix::Value value;
  value.type = pmix::Type::kBool;
  value.flag = flag;
  return value;
}

}  // namespace

/// The server's answer. The library's own value does not outlive the callback.
struct PmixClient::Answer {
  pmix::Status status = pmix::kSuccess;
  pmix::Type type{};
  std::uint32_t number = 0;
  std::string bytes;

  Answer(pmix::Status status, const pmix::Value* value) : status(status) {
    if (status != pmix::kSuccess || value == nullptr) {
      return;
    }
    type = value->type;
    if (type == pmix::Type::kByteObject) {
      bytes.assign(value->bytes.data, value->bytes.size);
    }
    if (type == pmix::Type::kUint16) {
      number = value->uint16;
    }
    if (type == pmix::Type::kUint32) {
      number = value->uint32;
    }
  }
};

/// The client, or the reason why there is none.
struct PmixClient::Session {
  pid_t made_by = getpid();
  std::unique_ptr<PmixClient> client;
  std::string why_not;

  Session() {
    // Without this variable, the library would look for another job's server on this host, and take
    // tens of milliseconds to find none.
    const char* const server = std::getenv(kServerVariable);
    if (server == nullptr || *server == '\0') {
      return;
    }
    try {
      client = std::unique_ptr<PmixClient>(new PmixClient());
    } catch (const Error& error) {
      why_not = error.what();
      transport::log().info("PMIx is not used: {}", why_not);
    }
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  Session(Session&&) = delete;
  Session& operator=(Session&&) = delete;
  ~Session() {
    if (made_by != getpid()) {
      static_cast<void>(client.release());  // the parent process owns the connection
    }
  }
};

PmixClient::Session& PmixClient::session() {
  static Session session;
  return session;
}

PmixClient* PmixClient::get() {
  const Session& made = session();
  return made.made_by == getpid() ? made.client.get() : nullptr;
}

PmixClient& PmixClient::required() {
  if (PmixClient* const client = get()) {
    return *client;
  }
  const std::string why = why_not();
  throw Error(
      ErrorKind::kBootstrap,
      fmt::format("PMIx cannot identify this process: {}. Start the ranks with mpirun, prterun or "
                  "srun --mpi=pmix",
                  why.empty() ? "no PMIx server started it (PMIX_NAMESPACE is not set)" : why));
}

std::string PmixClient::why_not() {
  const Session& made = session();
  if (made.client && made.made_by != getpid()) {
    return fmt::format("process {} was forked from process {}, which is PMIx's client", getpid(),
                       made.made_by);
  }
  return made.why_not;
}

PmixClient::PmixClient() : library_(pmix::load()) {
  const pmix::Status status = library_.init(&self_, nullptr, 0);
  if (status != pmix::kSuccess) {
    throw Error(ErrorKind::kBootstrap,
                fmt::format("{} is set, but the PMIx server does not answer: {} ({})",
                            kServerVariable, library_.error_string(status), status));
  }
  const std::string_view version = library_.get_version();
  description_ = fmt::format("{}, job {}", version.substr(0, version.find(" (")), self_.job.data());
  const auto size = number(pmix::kWildcard, kJobSize);
  if (!size || self_.rank >= *size || *size > transport::kMaxRanks) {
    library_.finalize(nullptr, 0);
    throw Error(
        ErrorKind::kBootstrap,
        fmt::format("{}: this is rank {} of {}: expected 1 to {} ranks", description_, self_.rank,
                    size ? std::to_string(*size) : "an unknown number", transport::kMaxRanks));
  }
  size_ = *size;
}

PmixClient::~PmixClient() { library_.finalize(nullptr, 0); }

std::optional<std::uint32_t> PmixClient::number(std::uint32_t rank, const char* key) {
  const auto answer = ask(rank, key, kJobFact, Known::kGood);
  if (!answer || answer->status != pmix::kSuccess) {
    return std::nullopt;
  }
  const bool known = answer->type == pmix::Type::kUint16 || answer->type == pmix::Type::kUint32;
  return known ? std::optional(answer->number) : std::nullopt;
}

std::optional<std::uint32_t> PmixClient::local_rank() { return number(self_.rank, kLocalRank); }
std::optional<std::uint32_t> PmixClient::local_size() {
  return number(pmix::kWildcard, kLocalSize);
}

void PmixClient::put(std::string_view key, std::string_view bytes) {
  const std::string name(key);
  pmix::Value value;
  value.type = pmix::Type::kByteObject;
  value.bytes = {.data = bytes.data(), .size = bytes.size()};
  const std::scoped_lock lock(mutex_);
  pmix::Status status = library_.put(pmix::kGlobal, name.c_str(), &value);
  if (status == pmix::kSuccess) {
    status = library_.commit();
  }
  if (status == pmix::kSuccess) {
    return;
  }
  throw Error(ErrorKind::kBootstrap, fmt::format("{}: putting '{}': {} ({})", description_, key,
                                                 library_.error_string(status), status));
}

std::optional<std::string> PmixClient::find(std::uint32_t rank, std::string_view key,
                                            transport::Duration at_most) {
  const auto end = steady_clock::now() + std::min<transport::Duration>(at_most, kForever);
  std::chrono::milliseconds pause{1};
  for (auto known = Known::kGood;; known = Known::kOld) {
    const auto slice = std::min<transport::Duration>(end - steady_clock::now(), kSlice);
    auto answer = ask(rank, key, slice, known);
    const bool waited = !answer || answer->status == kErrTimeout;
    if (!waited && answer->status == pmix::kSuccess && answer->type == pmix::Type::kByteObject) {
      return std::move(answer->bytes);
    }
    if (!waited && answer->status != kErrNotFound) {
      throw Error(ErrorKind::kBootstrap,
                  fmt::format("{}: getting '{}' of rank {}: {} ({})", description_, key, rank,
                              library_.error_string(answer->status), answer->status));
    }
    if (!waited) {
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, kLongestPause);
    }
    if (steady_clock::now() >= end) {
      return std::nullopt;
    }
  }
}

/// Asks for a value; returns nullopt if `at_most` passes first. A blocking PMIx get could block
/// forever; this one can be abandoned, because it owns what it uses.
std::optional<PmixClient::Answer> PmixClient::ask(std::uint32_t rank, std::string_view key,
                                                  transport::Duration at_most, Known known) {
  struct Question {
    pmix::Process process;
    std::string key;
    std::array<pmix::Info, 2> infos;
    std::mutex mutex;
    std::condition_variable answered;
    std::optional<Answer> answer;
  };
  const auto question = std::make_shared<Question>();
  question->process = self_;
  question->process.rank = rank;
  question->key = key;
  // The limit is in whole seconds; 0 would mean no limit.
  const auto limit =
      std::clamp<seconds>(std::chrono::ceil<seconds>(at_most), seconds(1), std::chrono::hours(24));
  question->infos = {info(kTimeout, of(static_cast<int>(limit.count()))),
                     info(kRefreshCache, of(true))};
  const std::size_t infos = known == Known::kGood ? 1 : 2;
  auto owned = std::make_unique<std::shared_ptr<Question>>(question);
  const auto take_answer = [](pmix::Status status, pmix::Value* value, void* data) {
    const std::unique_ptr<std::shared_ptr<Question>> owned(
        static_cast<std::shared_ptr<Question>*>(data));
    Question& asked = **owned;
    const std::scoped_lock lock(asked.mutex);
    asked.answer.emplace(status, value);
    asked.answered.notify_all();
  };
  const pmix::Status status =
      library_.get_nb(&question->process, question->key.c_str(), question->infos.data(), infos,
                      take_answer, owned.get());
  if (status != pmix::kSuccess) {
    return Answer(status, nullptr);
  }
  static_cast<void>(owned.release());  // owned by the callback
  std::unique_lock lock(question->mutex);
  question->answered.wait_for(lock, std::min<transport::Duration>(at_most, limit),
                              [&] { return question->answer.has_value(); });
  return question->answer;
}

}  // namespace gtopk::bootstrap
