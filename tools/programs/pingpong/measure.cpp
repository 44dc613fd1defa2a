#include "tools/programs/pingpong/measure.hpp"

#include <array>
#include <chrono>
#include <span>

#include "src/numbers/mix.hpp"

namespace gtopk::programs::pingpong {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kCheckedRounds = 3;

/// Byte i of the message with this seed.
std::byte pattern(std::uint64_t seed, std::uint64_t i) {
  return static_cast<std::byte>(drawn(seed, i / 8) >> (8 * (i % 8)));
}

}  // namespace

void Player::reserve(std::uint64_t bytes) {
  sent_.assign(bytes, std::byte{'g'});
  received_.assign(bytes, std::byte{0});
}

void Player::round() {
  if (plan_->mode == "bw") {
    window();
  } else if (measures_ || plan_->mode == "exchange") {
    wire_->recv(0, received_);
    wire_->send(0, sent_);
    wire_->finish();
  } else {
    wire_->recv(0, received_);
    wire_->finish();
    wire_->send(0, sent_);
    wire_->finish();
  }
}

/// All messages of a window are equal, so they may be received into one buffer.
void Player::window() {
  std::array<std::byte, 1> acknowledgement{};
  for (std::uint32_t slot = 1; slot <= plan_->window; ++slot) {
    if (measures_) {
      wire_->send(slot, sent_);
    } else {
      wire_->recv(slot, received_);
    }
  }
  if (measures_) {
    wire_->recv(0, acknowledgement);
    wire_->finish();
  } else {
    wire_->finish();
    wire_->send(0, acknowledgement);
    wire_->finish();
  }
}

std::vector<double> Player::measure() {
  for (std::uint32_t i = 0; i < plan_->warm_up; ++i) {
    round();
  }
  const double messages = plan_->mode == "bw" ? plan_->window : plan_->mode == "lat" ? 2 : 1;
  std::vector<double> seconds;
  for (std::uint32_t i = 0; i < rounds_of(*plan_, sent_.size()); ++i) {
    const auto begin = Clock::now();
    round();
    const std::chrono::duration<double> taken = Clock::now() - begin;
    seconds.push_back(taken.count() / messages);
  }
  return seconds;
}

std::uint64_t Player::wrong_bytes(std::uint64_t seed) const {
  std::uint64_t wrong = 0;
  for (std::uint64_t i = 0; i < received_.size(); ++i) {
    if (received_[i] != pattern(seed, i)) {
      ++wrong;
    }
  }
  return wrong;
}

std::uint64_t Player::check() {
  std::uint64_t wrong = 0;
  for (std::uint64_t number = 0; number < kCheckedRounds; ++number) {
    const std::uint64_t mine = 2 * number + (measures_ ? 0 : 1);
    const std::uint64_t theirs = 2 * number + (measures_ ? 1 : 0);
    for (std::uint64_t i = 0; i < sent_.size(); ++i) {
      sent_[i] = pattern(mine, i);
    }
    round();
    if (!measures_ || plan_->mode != "bw") {
      wrong += wrong_bytes(theirs);
    }
  }
  std::uint64_t their_count = 0;
  wire_->recv(0, std::as_writable_bytes(std::span(&their_count, 1)));
  wire_->send(0, std::as_bytes(std::span(&wrong, 1)));
  wire_->finish();
  return wrong + their_count;
}

/// There and back, so that no rank leaves before the other has heard from it.
bool Player::agree(bool value) {
  std::array<std::byte, 1> flag{value ? std::byte{1} : std::byte{0}};
  std::array<std::byte, 1> answer{};
  if (measures_) {
    wire_->recv(0, answer);
    wire_->send(0, flag);
    wire_->finish();
  } else {
    wire_->recv(0, flag);
    wire_->finish();
    wire_->send(0, answer);
    wire_->finish();
  }
  return flag[0] != std::byte{0};
}

}  // namespace gtopk::programs::pingpong
