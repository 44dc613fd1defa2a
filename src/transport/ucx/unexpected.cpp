#include "src/transport/ucx/unexpected.hpp"

#include "src/transport/base/log.hpp"

namespace gtopk::transport {
namespace {

constexpr Tag kEveryBit = ~Tag{0};

}  // namespace

bool UnexpectedMessages::lies_there(Tag tag) const {
  ucp_tag_recv_info_t info{};
  return aside_.contains(tag) ||
         ucp_tag_probe_nb(worker_.get(), tag ^ key_, kEveryBit, 0, &info) != nullptr;
}

std::size_t UnexpectedMessages::length_of_next(Tag tag) const {
  ucp_tag_recv_info_t info{};
  static_cast<void>(ucp_tag_probe_nb(worker_.get(), tag ^ key_, kEveryBit, 0, &info));
  return info.length;
}

std::optional<UnexpectedMessages::Message> UnexpectedMessages::take_aside(Tag tag) {
  if (aside_.empty()) {
    return std::nullopt;
  }
  const auto entry = aside_.find(tag);
  if (entry == aside_.end()) {
    return std::nullopt;
  }
  const Message message = entry->second.front();
  entry->second.pop_front();
  if (entry->second.empty()) {
    aside_.erase(entry);
  }
  return message;
}

std::size_t UnexpectedMessages::discard(Tag tag, Tag mask) {
  std::size_t count = 0;
  const auto dropped = [&](Tag of, ucp_tag_message_h message, std::size_t bytes) {
    ++count;
    drop(message);
    log().debug("dropped {}, {} bytes", describe(of), bytes);
  };
  std::erase_if(aside_, [&](const auto& entry) {
    if ((entry.first & mask) != (tag & mask)) {
      return false;
    }
    for (const Message& message : entry.second) {
      dropped(entry.first, message.handle, message.bytes);
    }
    return true;
  });
  ucp_tag_recv_info_t info{};
  while (ucp_tag_message_h message = ucp_tag_probe_nb(worker_.get(), tag ^ key_, mask, 1, &info)) {
    dropped(info.sender_tag ^ key_, message, info.length);
  }
  return count;
}

std::size_t UnexpectedMessages::sift(const std::function<bool(Tag)>& ours) {
  std::size_t count = 0;
  std::erase_if(aside_, [&](const auto& entry) {
    if (ours(entry.first)) {
      return false;
    }
    for (const Message& message : entry.second) {
      ++count;
      drop(message.handle);
    }
    return true;
  });
  ucp_tag_recv_info_t info{};
  while (ucp_tag_message_h message = ucp_tag_probe_nb(worker_.get(), 0, 0, 1, &info)) {
    const Tag tag = info.sender_tag ^ key_;
    if (ours(tag)) {
      aside_[tag].push_back({.handle = message, .bytes = info.length});
    } else {
      ++count;
      drop(message);
    }
  }
  return count;
}

void UnexpectedMessages::drop_all(const std::function<void(Tag, std::size_t)>& visit) {
  sift([](Tag) { return true; });
  for (const auto& [tag, messages] : aside_) {
    for (const Message& message : messages) {
      visit(tag, message.bytes);
      drop(message.handle);
    }
  }
  aside_.clear();
}

/// Receives a message into an empty buffer: UCX truncates it, and its sender completes as usual.
void UnexpectedMessages::drop(ucp_tag_message_h message) {
  auto& dropped = dropped_.emplace_back(std::make_unique<Dropped>());
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_REQUEST | UCP_OP_ATTR_FIELD_CALLBACK |
                        UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  params.request = dropped->storage + Request::kStorage;
  params.cb.recv = [](void*, ucs_status_t, const ucp_tag_recv_info_t*, void* user_data) {
    static_cast<Dropped*>(user_data)->done = true;
  };
  params.user_data = dropped.get();
  params.memory_type = UCS_MEMORY_TYPE_HOST;
  const ucs_status_ptr_t answer =
      ucp_tag_msg_recv_nbx(worker_.get(), dropped->storage, 0, message, &params);
  dropped->done = dropped->done || !UCS_PTR_IS_PTR(answer);
}

void UnexpectedMessages::tidy() {
  std::erase_if(dropped_, [](const std::unique_ptr<Dropped>& message) { return message->done; });
}

void UnexpectedMessages::forget() {
  aside_.clear();
  dropped_.clear();
}

}  // namespace gtopk::transport
