// Transport over UCX: messages that have arrived before their receives. UCX keeps them in one list,
// and shows only the first match; messages already examined are kept aside here. This module does
// not know peers.
#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "src/transport/base/request.hpp"
#include "src/transport/base/tag.hpp"
#include "src/transport/base/transport.hpp"
#include "src/transport/ucx/worker.hpp"

namespace gtopk::transport {

class UnexpectedMessages {
 public:
  struct Message {
    ucp_tag_message_h handle = nullptr;
    std::size_t bytes = 0;
  };

  /// Messages to this process are sent under `key`.
  UnexpectedMessages(const UcxWorker& worker, Tag key) : worker_(worker), key_(key) {}
  UnexpectedMessages(const UnexpectedMessages&) = delete;
  UnexpectedMessages& operator=(const UnexpectedMessages&) = delete;
  UnexpectedMessages(UnexpectedMessages&&) = delete;
  UnexpectedMessages& operator=(UnexpectedMessages&&) = delete;
  ~UnexpectedMessages() = default;

  [[nodiscard]] bool lies_there(Tag tag) const;
  /// The length of the first message with that tag, which stays in place; 0 if there is none.
  [[nodiscard]] std::size_t length_of_next(Tag tag) const;
  /// Takes the first message with that tag among those kept aside, which arrived before all
  /// messages that UCX still has.
  [[nodiscard]] std::optional<Message> take_aside(Tag tag);

  /// See Transport.
  std::size_t discard(Tag tag, Tag mask);
  std::size_t sift(const std::function<bool(Tag)>& ours);
  /// Calls `visit` with the tag and size of each message, and drops the message.
  void drop_all(const std::function<void(Tag, std::size_t)>& visit);

  /// Whether UCX still holds any message that was dropped.
  [[nodiscard]] bool dropping() const { return !dropped_.empty(); }
  void tidy();
  /// Must be called after the worker has ended.
  void forget();

 private:
  struct Dropped {
    bool done = false;
    alignas(64) std::byte storage[Request::kStorage];
  };

  void drop(ucp_tag_message_h message);

  const UcxWorker& worker_;
  const Tag key_;
  std::unordered_map<Tag, std::deque<Message>> aside_;
  std::vector<std::unique_ptr<Dropped>> dropped_;
};

}  // namespace gtopk::transport
