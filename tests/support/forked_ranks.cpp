#include "tests/support/forked_ranks.hpp"

#include <execinfo.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <ostream>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace gtopk::test {
namespace {

using std::chrono::steady_clock;

constexpr std::size_t kMaxMessage = std::size_t{64} << 10U;
constexpr int kStackSignal = SIGUSR2;

// The first byte of each message to the parent.
constexpr char kSaid = 's';
constexpr char kVerdict = 'v';  // empty: passed
constexpr char kStack = 't';    // the stack that a thread has printed

/// How long a thread of a hung rank may take to print its stack; a stopped thread never does.
constexpr std::chrono::seconds kStackLimit{1};

void post(int channel, char kind, std::string_view text) {
  std::string message(1, kind);
  message += text.substr(0, kMaxMessage);
  while (send(channel, message.data(), message.size(), MSG_NOSIGNAL) < 0) {
    if (errno != EINTR) {
      throw std::runtime_error("the other end of the test is gone");
    }
  }
}

/// Keeps the text of every failed expectation of a rank's body.
class Failures final : public testing::EmptyTestEventListener {
 public:
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (result.failed()) {
      text_ += fmt::format("{}:{}: {}\n", result.file_name() == nullptr ? "?" : result.file_name(),
                           result.line_number(), result.message());
    }
  }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string text_;
};

/// In a rank: where its signal handler sends its answer.
volatile std::sig_atomic_t channel_to_parent = -1;

extern "C" void print_stack(int /*signal*/) {
  const int interrupted = errno;
  std::array<void*, 64> frames{};
  const int depth = backtrace(frames.data(), static_cast<int>(frames.size()));
  backtrace_symbols_fd(frames.data(), depth, STDERR_FILENO);
  const char line[] = "--\n";
  static_cast<void>(!write(STDERR_FILENO, line, sizeof(line) - 1));
  static_cast<void>(send(channel_to_parent, &kStack, 1, MSG_NOSIGNAL | MSG_DONTWAIT));
  errno = interrupted;
}

}  // namespace

namespace {

void enter_namespaces_of(pid_t process) {
  for (const auto& [name, kind] : {std::pair{"ipc", CLONE_NEWIPC},
                                   {"uts", CLONE_NEWUTS},
                                   {"net", CLONE_NEWNET},
                                   {"mnt", CLONE_NEWNS}}) {
    const bootstrap::Descriptor space(
        open(fmt::format("/proc/{}/ns/{}", process, name).c_str(), O_RDONLY | O_CLOEXEC));
    if (!space || setns(space.get(), kind) != 0) {
      throw std::system_error(errno, std::generic_category(),
                              fmt::format("entering process {}'s {} namespace", process, name));
    }
  }
}

}  // namespace

std::unique_ptr<KeyValueStore> ForkedRank::store() const {
  return std::make_unique<bootstrap::TcpStore>(rendezvous_, std::chrono::seconds(60));
}

void ForkedRank::say(std::string_view text) const { post(channel_, kSaid, text); }

std::string ForkedRank::hear() const {
  std::string message(kMaxMessage + 1, '\0');
  for (;;) {
    const ssize_t got = recv(channel_, message.data(), message.size(), 0);
    if (got > 0) {
      message.resize(static_cast<std::size_t>(got));
      return message.substr(1);
    }
    if (got == 0 || errno != EINTR) {
      throw std::runtime_error("the parent of the test is gone");
    }
  }
}

std::ostream& operator<<(std::ostream& out, const RankReport& report) {
  out << "rank " << report.rank << ' ';
  switch (report.end) {
    case RankReport::End::kPassed:
      out << "passed";
      break;
    case RankReport::End::kFailed:
      out << "failed";
      break;
    case RankReport::End::kExited:
      out << "exited with status " << report.code;
      break;
    case RankReport::End::kSignalled:
      out << "ended by signal " << report.code;
      break;
    case RankReport::End::kHung:
      out << "hung";
      break;
  }
  return report.text.empty() ? out : out << ":\n" << report.text;
}

ForkedRanks::ForkedRanks(int size, const Body& body, const Options& options)
    : deadline_(steady_clock::now() + options.limit) {
  std::optional<bootstrap::RendezvousListener> listener(
      bootstrap::Endpoint{.host = options.address, .port = 0});
  rendezvous_ = bootstrap::Endpoint{.host = options.address, .port = listener->port()};
  const pid_t parent = getpid();
  children_.reserve(static_cast<std::size_t>(size));
  std::fflush(nullptr);
  for (int rank = 0; rank < size; ++rank) {
    std::array<int, 2> ends{};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
      throw std::system_error(errno, std::generic_category(), "socketpair");
    }
    bootstrap::Descriptor ours(ends[0]);
    const bootstrap::Descriptor theirs(ends[1]);
    const pid_t process = fork();
    if (process < 0) {
      throw std::system_error(errno, std::generic_category(), "fork");
    }
    if (process == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) {
        _exit(1);
      }
      // Close the parent's descriptors here: an end of file is seen only when all holders have
      // closed.
      children_.clear();
      listener.reset();
      ours = bootstrap::Descriptor();
      ForkedRank self(rank, size, rendezvous_, theirs.get());
      run_child(self, body, options);
    }
    Child& child = children_.emplace_back();
    child.process = process;
    child.channel = std::move(ours);
  }
  server_.emplace(std::move(*listener));
}

void ForkedRanks::run_child(ForkedRank& rank, const Body& body, const Options& options) {
  channel_to_parent = rank.channel();
  struct sigaction action {};
  action.sa_handler = print_stack;
  action.sa_flags = SA_RESTART;
  sigaction(kStackSignal, &action, nullptr);
  std::array<void*, 1> frame{};
  backtrace(frame.data(), 1);  // loads what backtrace() needs, outside any signal handler
  for (const auto& [name, value] : options.environment) {
    setenv(name.c_str(), value.c_str(), 1);
  }
  // Only the parent speaks to the terminal; a rank's failures travel to it as text.
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  delete listeners.Release(listeners.default_result_printer());
  auto* const failures = new Failures;
  listeners.Append(failures);
  std::string text;
  try {
    if (!options.hosts.empty()) {
      const auto number = static_cast<std::size_t>(rank.rank());
      enter_namespaces_of(options.hosts[number % options.hosts.size()]);
    }
    body(rank);
  } catch (const std::exception& error) {
    text = fmt::format("exception: {}\n", error.what());
  } catch (...) {
    text = "exception of a type that is no std::exception\n";
  }
  text = failures->text() + text;
  try {
    post(rank.channel(), kVerdict, text);
  } catch (const std::exception&) {
    _exit(1);
  }
  std::exit(0);
}

ForkedRanks::~ForkedRanks() {
  for (Child& child : children_) {
    if (!child.reaped) {
      kill(child.process, SIGKILL);
      waitpid(child.process, &child.status, 0);
    }
  }
}

void ForkedRanks::tell(int rank, std::string_view text) {
  post(children_.at(index(rank)).channel.get(), kSaid, text);
}

std::string ForkedRanks::hear(int rank) {
  Child& child = children_.at(index(rank));
  while (child.said.empty() && !child.closed && listen(deadline_)) {
  }
  if (child.said.empty()) {
    throw std::runtime_error(fmt::format(
        "rank {} {}: {}", rank, child.closed ? "ended without a word" : "said nothing in time",
        child.verdict.value_or("")));
  }
  std::string text = std::move(child.said.front());
  child.said.erase(child.said.begin());
  return text;
}

void ForkedRanks::signal(int rank, int number) {
  const Child& child = children_.at(index(rank));
  if (!child.reaped) {
    kill(child.process, number);
  }
}

/// Reads what the ranks sent; false if the time runs out first.
bool ForkedRanks::listen(steady_clock::time_point until) {
  std::vector<pollfd> entries;
  for (const Child& child : children_) {
    entries.push_back(
        {.fd = child.closed ? -1 : child.channel.get(), .events = POLLIN, .revents = 0});
  }
  const auto rest = std::chrono::ceil<std::chrono::milliseconds>(until - steady_clock::now());
  const int ready = poll(entries.data(), entries.size(),
                         static_cast<int>(std::max<std::int64_t>(rest.count(), 0)));
  if (ready == 0) {
    return false;
  }
  for (std::size_t i = 0; ready > 0 && i < children_.size(); ++i) {
    if (entries[i].revents != 0) {
      read_from(children_[i]);
    }
  }
  return true;
}

void ForkedRanks::read_from(Child& child) {
  std::string message(kMaxMessage + 1, '\0');
  const ssize_t got = recv(child.channel.get(), message.data(), message.size(), 0);
  if (got > 0) {
    message.resize(static_cast<std::size_t>(got));
    if (message[0] == kVerdict) {
      child.verdict = message.substr(1);
    } else if (message[0] == kStack) {
      ++child.stacks;
    } else {
      child.said.push_back(message.substr(1));
    }
  } else if (got == 0 || (errno != EINTR && errno != ECONNRESET)) {
    // The rank has ended: it was the only holder of the other end. ECONNRESET comes first if it had
    // not read all that it was told, and what it said is still to be read.
    child.closed = true;
  }
}

std::vector<RankReport> ForkedRanks::join() {
  const auto open = [](const Child& child) { return !child.closed; };
  while (std::any_of(children_.begin(), children_.end(), open) && listen(deadline_)) {
  }
  std::vector<RankReport> reports;
  for (int rank = 0; rank < static_cast<int>(children_.size()); ++rank) {
    reports.push_back(conclude(rank));
  }
  return reports;
}

/// Every thread of a hung rank prints its own stack, one at a time so that the lines do not mix.
void ForkedRanks::print_stacks(Child& child) {
  std::error_code error;
  const std::filesystem::path tasks = fmt::format("/proc/{}/task", child.process);
  for (const auto& task : std::filesystem::directory_iterator(tasks, error)) {
    const auto thread = static_cast<pid_t>(std::stol(task.path().filename().string()));
    fmt::print(stderr, "stack of thread {} of hung process {}:\n", thread, child.process);
    std::fflush(stderr);
    syscall(SYS_tgkill, child.process, thread, kStackSignal);
    const int before = child.stacks;
    const auto until = steady_clock::now() + kStackLimit;
    while (child.stacks == before && !child.closed && listen(until)) {
    }
  }
}

RankReport ForkedRanks::conclude(int rank) {
  Child& child = children_.at(index(rank));
  RankReport report{.rank = rank, .text = child.verdict.value_or("")};
  if (!child.closed) {
    report.end = RankReport::End::kHung;
    print_stacks(child);
    kill(child.process, SIGKILL);
  }
  if (!child.reaped) {
    waitpid(child.process, &child.status, 0);
    child.reaped = true;
  }
  if (report.end == RankReport::End::kHung) {
    return report;
  }
  if (WIFSIGNALED(child.status)) {
    report.end = RankReport::End::kSignalled;
    report.code = WTERMSIG(child.status);
  } else if (WEXITSTATUS(child.status) != 0) {
    report.end = RankReport::End::kExited;
    report.code = WEXITSTATUS(child.status);
  } else if (child.verdict && child.verdict->empty()) {
    report.end = RankReport::End::kPassed;
  } else if (!child.verdict) {
    report.text = "left by exit() before its body had ended";
  }
  return report;
}

void run_forked_ranks(int size, const ForkedRanks::Body& body,
                      const ForkedRanks::Options& options) {
  ForkedRanks ranks(size, body, options);
  for (const RankReport& report : ranks.join()) {
    EXPECT_TRUE(report.passed()) << report;
  }
}

}  // namespace gtopk::test
