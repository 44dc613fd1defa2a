// Communicator: a stranger who has got hold of the ranks' cards and addresses, but not of the job's
// secret, sends a rank what only another rank may send. All run in one program.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "gtopk/communicator.hpp"
#include "gtopk/launch.hpp"
#include "src/communicator/member_card.hpp"
#include "src/engine/notice.hpp"
#include "src/transport/base/job_key.hpp"
#include "src/transport/base/tag.hpp"
#include "src/transport/ucx/ucx_transport.hpp"
#include "tests/communicator/member.hpp"
#include "tests/support/memory_store.hpp"
#include "tests/transport/suite/message.hpp"

namespace gtopk::test {
namespace {

using engine::Notice;
using engine::NoticeKind;
using testing::HasSubstr;
using testing::Not;
using transport::JobKey;

/// What the ranks have told one another.
struct Leak {
  std::mutex mutex;
  std::map<std::string, std::string, std::less<>> addresses;
  std::vector<std::string> cards;
};

class LeakyDirectory final : public Directory {
 public:
  LeakyDirectory(std::shared_ptr<Directory> directory, Leak& leak)
      : directory_(std::move(directory)), leak_(leak) {}

  void publish(std::string_view name, std::string_view address) override {
    directory_->publish(name, address);
    const std::lock_guard lock(leak_.mutex);
    leak_.addresses.emplace(name, address);
  }
  std::optional<std::string> lookup(std::string_view name,
                                    std::chrono::nanoseconds at_most) override {
    return directory_->lookup(name, at_most);
  }
  std::vector<std::string> meet(const Presence& self, std::chrono::nanoseconds at_most) override {
    std::vector<std::string> cards = directory_->meet(self, at_most);
    const std::lock_guard lock(leak_.mutex);
    leak_.cards = cards;
    return cards;
  }

 private:
  std::shared_ptr<Directory> directory_;
  Leak& leak_;
};

/// Standard error goes to a file that can be read meanwhile.
class StderrInFile {
 public:
  StderrInFile() {
    std::fflush(stderr);
    dup2(fileno(file_.get()), STDERR_FILENO);
  }
  StderrInFile(const StderrInFile&) = delete;
  StderrInFile& operator=(const StderrInFile&) = delete;
  StderrInFile(StderrInFile&&) = delete;
  StderrInFile& operator=(StderrInFile&&) = delete;
  ~StderrInFile() {
    dup2(before_, STDERR_FILENO);
    close(before_);
  }
  [[nodiscard]] std::string text() const {
    std::string text(std::size_t{64} << 10U, '\0');
    const ssize_t bytes = pread(fileno(file_.get()), text.data(), text.size(), 0);
    text.resize(static_cast<std::size_t>(std::max<ssize_t>(bytes, 0)));
    return text;
  }

 private:
  int before_ = dup(STDERR_FILENO);
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_{std::tmpfile(), &std::fclose};
};

/// Two ranks of a job with a secret.
class Pair {
 public:
  explicit Pair(Leak& leak) {
    std::vector<std::jthread> threads;
    for (const std::uint32_t rank : {0U, 1U}) {
      threads.emplace_back([&, rank] {
        ranks_.at(rank) = std::make_unique<Communicator>(
            Process::start(), Meeting{.directory = std::make_shared<LeakyDirectory>(
                                          directory_over(store_, job_secret()), leak),
                                      .name = "pair",
                                      .rank = rank,
                                      .size = 2,
                                      .timeout = kWatchdog});
      });
    }
  }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;
  Pair(Pair&&) = delete;
  Pair& operator=(Pair&&) = delete;
  ~Pair() {
    std::vector<std::jthread> threads;  // each waits a little for the other's goodbye
    for (auto& rank : ranks_) {
      threads.emplace_back([&rank] { rank.reset(); });
    }
  }

  void expect_works() {
    std::array<std::int64_t, 2> values{1, 2};
    std::array<Pending, 2> pending;
    for (const std::size_t rank : {0U, 1U}) {
      ranks_.at(rank)->run(gtopk::all_reduce(&values.at(rank), 1, DataType::kInt64, ReduceOp::kSum),
                           pending.at(rank).call());
    }
    for (const Pending& each : pending) {
      const Ending ending = each.wait();
      EXPECT_TRUE(ending.good()) << ending.text;
    }
    EXPECT_THAT(values, testing::Each(3));
  }

 private:
  std::shared_ptr<support::MemoryStore> store_ = std::make_shared<support::MemoryStore>();
  std::array<std::unique_ptr<Communicator>, 2> ranks_;
};

TEST(Impostor, WithoutTheSecret_isNotAcceptedAndLogged) {
  setenv("GTOPK_SECRET", "the secret of this job", 1);
  const StderrInFile log;
  Leak leak;
  {
    Pair pair(leak);
    pair.expect_works();
    const std::vector<MemberCard> members = read_cards(leak.cards, {.group = "pair",
                                                                    .rank = 1,
                                                                    .size = 2,
                                                                    .card = leak.cards.at(1),
                                                                    .process = {},
                                                                    .refusal = {}});
    const auto stranger = transport::make_ucx_transport();
    const PeerId target = stranger->add_peer(members[0].transport);
    stranger->set_address(
        target, leak.addresses.at(fmt::format("gtopk/address/{:016x}", members[0].identity)));
    std::deque<Message> sent;
    for (const char* const secret : {"", "the secret of that job"}) {
      for (const NoticeKind kind :
           {NoticeKind::kHello, NoticeKind::kGroupFailure, NoticeKind::kGoodbye}) {
        Notice::Wire wire{};
        engine::encode(
            {kind, ErrorKind::kTransport, members[0].id, 0, "says the stranger", members[1].id},
            wire);
        std::string bytes(reinterpret_cast<const char*>(wire.data()), wire.size());
        if (const auto key = JobKey::of(secret)) {
          std::array<std::byte, JobKey::kProofBytes> proof{};
          key->prove(members[1].identity, members[0].identity, wire, proof);
          bytes.append(reinterpret_cast<const char*>(proof.data()), proof.size());
        }
        sent.emplace_back(bytes).send(*stranger, target,
                                      transport::control_tag(members[1].identity));
      }
    }
    // Six notices are logged as the 1st, the 2nd and the 4th.
    const auto end = std::chrono::steady_clock::now() + kWatchdog;
    while (log.text().find("(4 so far)") == std::string::npos &&
           std::chrono::steady_clock::now() < end) {
      stranger->progress();
      std::this_thread::yield();
    }
    EXPECT_THAT(log.text(), HasSubstr("dropped a notice in the name of pid"));
    pair.expect_works();
    stranger->close(kWatchdog);
  }
  EXPECT_THAT(log.text(), Not(HasSubstr("says the stranger")));
  unsetenv("GTOPK_SECRET");
}

}  // namespace
}  // namespace gtopk::test
