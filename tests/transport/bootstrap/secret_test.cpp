// Tests of the job's secret: the arithmetic against published vectors, who is admitted to a
// rendezvous that has one, and what is said about those who are not.
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

#include "gtopk/error.hpp"
#include "src/transport/bootstrap/handshake.hpp"
#include "src/transport/bootstrap/job_secret.hpp"
#include "src/transport/bootstrap/rendezvous_server.hpp"
#include "src/transport/bootstrap/sha256.hpp"
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

std::string hexadecimal(const std::string& bytes) {
  std::string text;
  for (const char byte : bytes) {
    text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  }
  return text;
}

// FIPS 180-4's examples, and a message of a million letters (NIST).
TEST(Sha256, GivesThePublishedDigests) {
  EXPECT_EQ(hexadecimal(sha256("")),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hexadecimal(sha256("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hexadecimal(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hexadecimal(sha256(std::string(1'000'000, 'a'))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// RFC 4231, cases 1, 2 and 6 (a key longer than a block).
TEST(HmacSha256, GivesThePublishedCodes) {
  EXPECT_EQ(hexadecimal(hmac_sha256(std::string(20, '\x0b'), "Hi There")),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hexadecimal(hmac_sha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hexadecimal(hmac_sha256(std::string(131, '\xaa'),
                                    "Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
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
