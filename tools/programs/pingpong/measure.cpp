#include "tools/programs/pingpong/measure.hpp"

#include <array>
#include <chrono>
#include <span>

#include "src/numbers/mix.hpp"

namespace gtopk::programs::pingpong {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kCheckedRounds = 3;

/// Returns byte i of the message with this seed.
std::byte pattern(std::uint64_t seed, std::uint64_t i) {
  return static_cast<std::byte>(drawn(seed, i / 8) >> (8 * (i % 8)));
}

}  // namespace

void Player::reserve(std::uint64_t bytes) {
  const std::uint32_t slots = plan_->mode == "bw" ? plan_->window : 1;
  const bool in_place = gpu_ != nullptr && wire_->takes(gpu_->memory().kind, bytes);
  sent_.reset();  // freed before the new ones, so that both never exist at once
  received_.reset();
  bytes_ = bytes;
  sent_ = std::make_unique<MessageBuffer>(gpu_, bytes, slots, in_place);
  received_ = std::make_unique<MessageBuffer>(gpu_, bytes, slots, in_place);
}

void Player::round() {
  if (plan_->mode == "bw") {
    window();
  } else if (measures_ || plan_->mode == "exchange") {
    wire_->recv(0, received_->incoming(0));
    wire_->send(0, sent_->outgoing(0));
    wire_->finish();
    received_->arrived(1);
  } else {
    wire_->recv(0, received_->incoming(0));
    wire_->finish();
    received_->arrived(1);
    wire_->send(0, sent_->outgoing(0));
    wire_->finish();
  }
}

/// Sends and receives a window. All its messages are equal, so they may be received into one
/// buffer.
void Player::window() {
  std::array<std::byte, 1> acknowledgement{};
  for (std::uint32_t slot = 0; slot < plan_->window; ++slot) {
    if (measures_) {
      wire_->send(slot + 1, sent_->outgoing(slot));
    } else {
      wire_->recv(slot + 1, received_->incoming(slot));
    }
  }
  if (measures_) {
    wire_->recv(0, acknowledgement);
    wire_->finish();
  } else {
    wire_->finish();
    received_->arrived(plan_->window);
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
  for (std::uint32_t i = 0; i < rounds_of(*plan_, bytes_); ++i) {
    const auto begin = Clock::now();
    round();
    const std::chrono::duration<double> taken = Clock::now() - begin;
    seconds.push_back(taken.count() / messages);
  }
  return seconds;
}

std::uint64_t Player::wrong_bytes(std::uint64_t seed) const {
  std::uint64_t wrong = 0;
  received_->fetch();
  const std::span<const std::byte> seen = received_->content();
  for (std::uint64_t i = 0; i < seen.size(); ++i) {
    if (seen[i] != pattern(seed, i)) {
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
    const std::span<std::byte> content = sent_->content();
    for (std::uint64_t i = 0; i < content.size(); ++i) {
      content[i] = pattern(mine, i);
    }
    sent_->store();
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

/// Sends messages back and forth, so that no rank leaves before the other has heard from it.
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
