// Tests of the job's secret: who is admitted to a rendezvous that has one, and what is said about
// those who are not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <sodium.h>

#include "gtopk/error.hpp"
#include "src/transport/bootstrap/handshake.hpp"
#include "src/transport/bootstrap/job_secret.hpp"
#include "src/transport/bootstrap/rendezvous_server.hpp"
#include "src/transport/bootstrap/tcp_store.hpp"
#include "tests/transport/bootstrap/error_of.hpp"

namespace gtopk::bootstrap {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;

constexpr auto kSecretLimit = 30s;  // a watchdog's
const std::string kSecret = "the secret of this job";
const std::string kOther = "the secret of that job";

/// libsodium's HMAC-SHA256 of the whole message, which takes keys of 32 bytes.
std::string code_of(const std::string& message, const std::string& key) {
  std::string code(kProofBytes, '\0');
  crypto_auth_hmacsha256(reinterpret_cast<unsigned char*>(code.data()),
                         reinterpret_cast<const unsigned char*>(message.data()), message.size(),
                         reinterpret_cast<const unsigned char*>(key.data()));
  return code;
}

TEST(Handshake, ProofsAreCodesOfTheSideAndBothNonces) {
  const std::string secret(32, 's');
  const ClientHandshake client(secret);
  ServerHandshake server(secret);
  std::string input = client.hello();
  const std::string client_nonce = input.substr(input.size() - kNonceBytes);
  std::string challenge;
  ASSERT_EQ(server.receive(input, challenge), ServerHandshake::Admission::kWaiting);
  const std::string server_nonce = challenge.substr(0, kNonceBytes);
  EXPECT_NE(client_nonce, server_nonce);
  EXPECT_EQ(challenge, server_nonce + code_of("server" + client_nonce + server_nonce, secret));
  EXPECT_EQ(client.reply_to(challenge), code_of("client" + client_nonce + server_nonce, secret));
}

class Guarded : public testing::Test {
 protected:
  [[nodiscard]] Endpoint at() const { return {.host = "127.0.0.1", .port = server_.port()}; }
  [[nodiscard]] TcpStore client(const std::string& secret) const {
    return {{at()}, kSecretLimit, secret};
  }
  void expect_refused(std::size_t count) {
    const auto end = std::chrono::steady_clock::now() + kSecretLimit;
    while (server_.load().refused < count && std::chrono::steady_clock::now() < end) {
      std::this_thread::yield();
    }
    EXPECT_GE(server_.load().refused, count);
  }

  RendezvousServer server_{RendezvousListener(Endpoint{.host = "127.0.0.1", .port = 0}), kSecret};
};

TEST_F(Guarded, LetsInWhoKnowsTheSecret) {
  TcpStore one = client(kSecret);
  TcpStore two = client(kSecret);
  one.set("key", "value");
  EXPECT_EQ(two.get("key", kSecretLimit), "value");
  EXPECT_EQ(server_.load().refused, 0U);
}

TEST_F(Guarded, RefusesAnotherSecretAndBothSidesSayIt) {
  testing::internal::CaptureStderr();
  TcpStore stranger = client(kOther);
  EXPECT_THAT(error_of([&] { stranger.set("key", "value"); }),
              AllOf(HasSubstr(fmt::format("127.0.0.1:{}", server_.port())),
                    HasSubstr("another secret (GTOPK_SECRET)")));
  expect_refused(1);
  TcpStore own = client(kSecret);
  EXPECT_EQ(own.find("key", 0s), std::nullopt);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("rendezvous: refused 127.0.0.1, which does not know the job's secret"));
}

TEST_F(Guarded, RefusesWhoHasNoSecret) {
  TcpStore stranger(at(), kSecretLimit);
  EXPECT_THAT(error_of([&] { stranger.set("key", "value"); }), HasSubstr("wants a secret"));
  expect_refused(1);
  EXPECT_EQ(server_.load().keys, 0U);
}

TEST_F(Guarded, RefusesAProofThatWasOverheard) {
  // What a client sends to another server, replayed to this one.
  ServerHandshake overheard(kSecret);
  const ClientHandshake honest(kSecret);
  std::string input = honest.hello();
  std::string challenge;
  ASSERT_EQ(overheard.receive(input, challenge), ServerHandshake::Admission::kWaiting);
  const auto proof = honest.reply_to(challenge);
  ASSERT_TRUE(proof.has_value());
  const Descriptor socket = connect_to(at(), kSecretLimit);
  const TimePoint end = std::chrono::steady_clock::now() + kSecretLimit;
  EXPECT_EQ(send_all(socket, honest.hello() + *proof, end), Transfer::kDone);
  expect_refused(1);
}

TEST(Unguarded, ServerIsNotTakenForTheJobsByAClientWithASecret) {
  const RendezvousServer server(RendezvousListener(Endpoint{.host = "127.0.0.1", .port = 0}));
  TcpStore store({{.host = "127.0.0.1", .port = server.port()}}, 300ms, kSecret);
  EXPECT_THAT(error_of([&] { store.set("key", "value"); }),
              HasSubstr("did not prove that it knows a secret"));
}

TEST(Guards, AWayToAnotherJobIsPassedByForTheRightOne) {
  const RendezvousServer wrong(RendezvousListener(Endpoint{.host = "127.0.0.1", .port = 0}),
                               kOther);
  const RendezvousServer right(RendezvousListener(Endpoint{.host = "127.0.0.1", .port = 0}),
                               kSecret);
  TcpStore store(
      {{.host = "127.0.0.1", .port = wrong.port()}, {.host = "127.0.0.1", .port = right.port()}},
      kSecretLimit, kSecret);
  EXPECT_EQ(store.add("here", 1), 1);
}

class JobSecret : public testing::Test {
 protected:
  void SetUp() override {
    unsetenv("GTOPK_SECRET");
    unsetenv("GTOPK_SECRET_FILE");
  }
  void TearDown() override {
    SetUp();
    std::filesystem::remove(path_);
  }
  void write(const std::string& text, mode_t mode) {
    std::ofstream(path_) << text;
    chmod(path_.c_str(), mode);
    setenv("GTOPK_SECRET_FILE", path_.c_str(), 1);
  }

  std::string path_ =
      std::filesystem::temp_directory_path() / fmt::format("gtopk-secret-{}", getpid());
};

TEST_F(JobSecret, IsReadFromTheEnvironmentOrAFile) {
  EXPECT_EQ(job_secret(), "");
  setenv("GTOPK_SECRET", kSecret.c_str(), 1);
  EXPECT_EQ(job_secret(), kSecret);
  write(kOther + "\n", 0600);
  EXPECT_EQ(job_secret(), kOther);
}

TEST_F(JobSecret, ThatProtectsNothingIsAnErrorThatSaysWhy) {
  setenv("GTOPK_SECRET", "short", 1);
  EXPECT_THAT(error_of([] { static_cast<void>(job_secret()); }),
              HasSubstr("GTOPK_SECRET gives a secret of 5 bytes: expected at least 16"));
  write(kSecret, 0640);
  EXPECT_THAT(error_of([] { static_cast<void>(job_secret()); }),
              AllOf(HasSubstr("whose mode is 640"), HasSubstr("chmod 600")));
  write("", 0600);
  EXPECT_THAT(error_of([] { static_cast<void>(job_secret()); }),
              HasSubstr("GTOPK_SECRET_FILE gives a secret of 0 bytes"));
  setenv("GTOPK_SECRET_FILE", "/nowhere/secret", 1);
  EXPECT_THAT(error_of([] { static_cast<void>(job_secret()); }),
              HasSubstr("'/nowhere/secret', which cannot be read"));
}

}  // namespace
}  // namespace gtopk::bootstrap
