// Transport, base: what is sealed or proved with a job's secret says nothing to who does not know
// it, and is worth nothing elsewhere.
#include "src/transport/base/job_key.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace gtopk::transport {
namespace {

const std::string kText = "10.0.0.1, port 40000";
constexpr std::string_view kHere = "gtopk/address/1";

TEST(JobKey, OfNoSecret_isNone) { EXPECT_EQ(JobKey::of(""), nullptr); }

TEST(Seal, OfAnyText_opensWithTheSecretOfTheJob) {
  const auto key = JobKey::of("the secret of this job");
  const auto same = JobKey::of("the secret of this job");
  for (const std::string& text : {std::string(), kText, std::string(100'000, '\0')}) {
    EXPECT_EQ(same->open(kHere, key->seal(kHere, text)), text);
  }
}

TEST(Seal, ShowsNothingOfItsText_evenIfItIsSealedAgain) {
  const auto key = JobKey::of("the secret of this job");
  const std::string once = key->seal(kHere, kText);
  const std::string again = key->seal(kHere, kText);
  EXPECT_NE(once, again);
  for (std::size_t at = 0; at + 4 <= kText.size(); ++at) {
    EXPECT_EQ(once.find(kText.substr(at, 4)), std::string::npos);
  }
}

TEST(Seal, ThatWasAltered_doesNotOpen) {
  const auto key = JobKey::of("the secret of this job");
  const std::string sealed = key->seal(kHere, kText);
  for (std::size_t at = 0; at < sealed.size(); ++at) {
    std::string altered = sealed;
    altered[at] = static_cast<char>(altered[at] ^ 1);
    EXPECT_EQ(key->open(kHere, altered), std::nullopt) << at;
    EXPECT_EQ(key->open(kHere, sealed.substr(0, at)), std::nullopt) << at;
  }
  EXPECT_EQ(key->open(kHere, kText), std::nullopt);
  EXPECT_EQ(key->open("gtopk/address/2", sealed), std::nullopt);
  EXPECT_EQ(JobKey::of("the secret of that job")->open(kHere, sealed), std::nullopt);
}

TEST(Proof, HoldsForItsSenderReceiverMessageAndSecretAlone) {
  const auto key = JobKey::of("the secret of this job");
  std::array<std::byte, 64> message{};
  std::array<std::byte, JobKey::kProofBytes> proof{};
  key->prove(1, 2, message, proof);
  EXPECT_TRUE(JobKey::of("the secret of this job")->proves(1, 2, message, proof));
  EXPECT_FALSE(JobKey::of("the secret of that job")->proves(1, 2, message, proof));
  EXPECT_FALSE(key->proves(2, 1, message, proof));
  EXPECT_FALSE(key->proves(1, 3, message, proof));
  EXPECT_FALSE(key->proves(1, 2, std::span(message).first(63), proof));
  EXPECT_FALSE(key->proves(1, 2, message, std::span(proof).first(31)));
  message.back() = std::byte{1};
  EXPECT_FALSE(key->proves(1, 2, message, proof));
}

}  // namespace
}  // namespace gtopk::transport
