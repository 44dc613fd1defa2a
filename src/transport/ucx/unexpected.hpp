// Transport over UCX: messages that have arrived before their receives. UCX keeps them in one list,
// of which it shows only the first that fits; those already examined are kept aside here. It knows
// no peers.
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

  /// This process's tags are sent under `key`.
  UnexpectedMessages(const UcxWorker& worker, Tag key) : worker_(worker), key_(key) {}
  UnexpectedMessages(const UnexpectedMessages&) = delete;
  UnexpectedMessages& operator=(const UnexpectedMessages&) = delete;
  UnexpectedMessages(UnexpectedMessages&&) = delete;
  UnexpectedMessages& operator=(UnexpectedMessages&&) = delete;
  ~UnexpectedMessages() = default;

  [[nodiscard]] bool lies_there(Tag tag) const;
  /// The length of the first one with that tag, which stays in place; 0: there is none.
  [[nodiscard]] std::size_t length_of_next(Tag tag) const;
  /// The first one with that tag among those kept aside, which arrived before all that UCX still
  /// has.
  [[nodiscard]] std::optional<Message> take_aside(Tag tag);

  /// See Transport.
  std::size_t discard(Tag tag, Tag mask);
  std::size_t sift(const std::function<bool(Tag)>& ours);
  /// Calls `visit` with tag and size of each, and drops it.
  void drop_all(const std::function<void(Tag, std::size_t)>& visit);

  /// Whether UCX has not released everything that was dropped.
  [[nodiscard]] bool dropping() const { return !dropped_.empty(); }
  void tidy();
  /// Call after the worker's end.
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
