// Test support of the suite: the network of one case, and its messages.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/transport/base/status.hpp"
#include "tests/transport/suite/message.hpp"
#include "tests/transport/suite/network.hpp"

namespace gtopk::test {

class EveryTransport : public testing::TestWithParam<NetworkKind> {
 protected:
  /// `size` ends that know one another; the previous network's ends are gone.
  Network& begin(std::size_t size, std::uint64_t seed = 1) {
    begin_among_strangers(size, seed).introduce();
    return *network_;
  }
  Network& begin_among_strangers(std::size_t size, std::uint64_t seed = 1) {
    network_.reset();
    messages_.clear();
    network_ = GetParam().make(size, seed);
    return *network_;
  }
  [[nodiscard]] Network& network() { return *network_; }
  [[nodiscard]] Transport& end(std::size_t i) { return (*network_)[i]; }
  [[nodiscard]] PeerId id(std::size_t at, std::size_t of) const { return network_->ids[at][of]; }

  Message& send(std::size_t from, std::size_t to, Tag tag, std::string content) {
    Message& message = messages_.emplace_back(std::move(content));
    message.send(end(from), id(from, to), tag);
    return message;
  }
  Message& recv(std::size_t at, std::size_t from, Tag tag, std::size_t capacity) {
    Message& message = messages_.emplace_back(capacity);
    message.recv(end(at), id(at, from), tag);
    return message;
  }

  /// Moves until each of these messages is done.
  [[nodiscard]] testing::AssertionResult done(const std::vector<const Message*>& messages) {
    const auto is_done = [](const Message* message) { return message->done(); };
    if (!network_->until([&] { return std::ranges::all_of(messages, is_done); })) {
      return testing::AssertionFailure()
             << std::ranges::count_if(messages, [](auto* message) { return message->pending(); })
             << " of " << messages.size() << " messages are still pending";
    }
    for (const Message* message : messages) {
      if (message->completions != 1) {
        return testing::AssertionFailure()
               << "a message was completed " << message->completions << " times";
      }
    }
    return testing::AssertionSuccess();
  }
  /// Moves until every message of this case is done.
  [[nodiscard]] testing::AssertionResult all_done() {
    std::vector<const Message*> all;
    for (const Message& message : messages_) {
      all.push_back(&message);
    }
    return done(all);
  }

 private:
  // The network goes first: it may still hold requests.
  std::deque<Message> messages_;
  std::unique_ptr<Network> network_;
};

inline std::string name_of(const testing::TestParamInfo<NetworkKind>& row) {
  return row.param.name;
}

}  // namespace gtopk::test

namespace gtopk::transport {
// GoogleTest finds it by this name.
// NOLINTNEXTLINE(readability-identifier-naming)
inline void PrintTo(Status status, std::ostream* out) { *out << to_string(status); }
}  // namespace gtopk::transport

namespace gtopk::test {
// NOLINTNEXTLINE(readability-identifier-naming)
inline void PrintTo(const NetworkKind& row, std::ostream* out) { *out << row.name; }
}  // namespace gtopk::test
