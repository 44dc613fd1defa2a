#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <deque>
#include <stdexcept>

#include "src/transport/base/transport.hpp"
#include "src/transport/ucx/ucx_transport.hpp"
#include "tools/programs/pingpong/wire.hpp"

namespace gtopk::programs::pingpong {
namespace {

using transport::PeerId;
using transport::Request;
using transport::Status;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kClosing{5};
/// The most parts of one message; tags distinguish them.
constexpr std::uint64_t kParts = 4096;

class MessageWire final : public Wire {
 public:
  MessageWire(const Ends& ends, std::uint64_t chunk)
      : chunk_(chunk), timeout_(ends.timeout), transport_(transport::make_ucx_transport()) {
    const std::uint32_t rank = ends.environment.rank;
    const auto theirs = [&](const char* what) {
      return ends.store->get(fmt::format("{} of rank {}", what, 1 - rank), ends.timeout);
    };
    ends.store->set(fmt::format("card of rank {}", rank), transport_->card());
    ends.store->set(fmt::format("address of rank {}", rank), transport_->address());
    peer_ = transport_->add_peer(theirs("card"));
    transport_->set_address(peer_, theirs("address"));
  }
  MessageWire(const MessageWire&) = delete;
  MessageWire& operator=(const MessageWire&) = delete;
  MessageWire(MessageWire&&) = delete;
  MessageWire& operator=(MessageWire&&) = delete;
  ~MessageWire() override {
    transport_->expect_departure(peer_);
    if (used_ != 0) {
      transport_->give_up(peer_);  // a message failed, so the rest will not come
    }
    transport_->close(kClosing);
  }

  void send(std::uint32_t slot, ConstBytes data) override {
    for_parts(slot, data.size(), [&](transport::Tag tag, std::size_t at, std::size_t bytes) {
      transport_->send(peer_, tag, data.subspan(at, bytes), next());
    });
  }
  void recv(std::uint32_t slot, Bytes data) override {
    for_parts(slot, data.size(), [&](transport::Tag tag, std::size_t at, std::size_t bytes) {
      transport_->recv(peer_, tag, data.subspan(at, bytes), next());
    });
  }
  [[nodiscard]] bool takes(Memory::Kind kind, std::uint64_t /*bytes*/) const override {
    return transport_->takes(kind, peer_);
  }
  void finish() override {
    const auto deadline = Clock::now() + timeout_;
    for (std::size_t i = 0; i < used_; ++i) {
      wait_for(requests_[i], deadline);
      if (requests_[i].status() != Status::kOk) {
        throw std::runtime_error(
            fmt::format("a message ended with '{}'{}", to_string(requests_[i].status()), reason()));
      }
    }
    used_ = 0;
  }
  [[nodiscard]] std::string describe() const override { return transport_->describe(); }
  [[nodiscard]] std::string lanes() const override { return transport::lanes(*transport_, peer_); }

 private:
  template <class Start>
  void for_parts(std::uint32_t slot, std::size_t bytes, Start start) {
    const std::size_t step = chunk_ == 0 ? std::max<std::size_t>(bytes, 1) : chunk_;
    std::uint64_t part = 0;
    for (std::size_t at = 0; at == 0 || at < bytes; at += step, ++part) {
      start(slot * kParts + part, at, std::min(step, bytes - at));
    }
  }
  Request& next() {
    if (requests_.size() == used_) {
      requests_.emplace_back();
    }
    Request& request = requests_[used_++];
    request.prepare([](Request&) {}, nullptr);
    return request;
  }
  /// Says why the peer is gone, if the transport knows.
  std::string reason() {
    transport_->progress();
    const auto failures = transport_->take_failures();
    return failures.empty() ? std::string() : ": " + failures.front().reason;
  }
  void wait_for(const Request& request, Clock::time_point deadline) {
    constexpr std::uint32_t kLooks = 1024;  // idle rounds between looks at the clock
    for (std::uint32_t idle = 0; request.pending();) {
      if (transport_->progress()) {
        continue;
      }
      sched_yield();
      if (++idle % kLooks != 0) {
        continue;
      }
      const auto failures = transport_->take_failures();
      if (!failures.empty()) {
        throw std::runtime_error("the peer is gone: " + failures[0].reason);
      }
      if (Clock::now() > deadline) {
        throw std::runtime_error(fmt::format("no answer within {:g} s",
                                             std::chrono::duration<double>(timeout_).count()));
      }
    }
  }

  std::uint64_t chunk_;
  std::chrono::nanoseconds timeout_;
  std::deque<Request> requests_;  // outlives the transport, which may use them until it closes
  std::size_t used_ = 0;
  std::unique_ptr<transport::Transport> transport_;
  PeerId peer_ = 0;
};

}  // namespace

std::unique_ptr<Wire> message_wire(const Ends& ends, std::uint64_t chunk) {
  return std::make_unique<MessageWire>(ends, chunk);
}

}  // namespace gtopk::programs::pingpong
