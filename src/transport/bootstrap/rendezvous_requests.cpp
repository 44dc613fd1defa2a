// Bootstrap: how the rendezvous server handles each request with its two dictionaries.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "src/transport/bootstrap/rendezvous_server.hpp"

namespace gtopk::bootstrap {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::chrono::hours kLongestWait{24 * 365};

}  // namespace

bool RendezvousServer::answer(Connection& connection, const RequestView& request) {
  const auto number = decode_integer(request.value);
  switch (request.command) {
    case Command::kSet:
      reply(connection, store(request.key, request.value) ? Result::kOk : Result::kRefused, {});
      return true;
    case Command::kGet: {
      if (!number || *number < 0) {
        return false;
      }
      const auto found = values_.find(std::string(request.key));
      if (found != values_.end()) {
        reply(connection, found->second);
      } else if (*number == 0) {
        reply(connection, Result::kNothing, {});
      } else {
        connection.waiting_for = request.key;
        connection.waits_until =
            steady_clock::now() + std::min<milliseconds>(milliseconds(*number), kLongestWait);
      }
      return true;
    }
    case Command::kAdd: {
      if (!number) {
        return false;
      }
      const auto [counter, fresh] = counters_.try_emplace(std::string(request.key), 0);
      if (fresh) {
        bytes_kept_ += request.key.size() + sizeof(*number);
        ++keys_;
      }
      // The arithmetic is unsigned so that a stranger's delta cannot overflow.
      counter->second = static_cast<std::int64_t>(static_cast<std::uint64_t>(counter->second) +
                                                  static_cast<std::uint64_t>(*number));
      reply(connection, Result::kOk, encode_integer(counter->second));
      return bytes_kept_ <= kMaxKept;
    }
    case Command::kRemove:
      if (!request.value.empty()) {
        return false;
      }
      forget(std::string(request.key));
      reply(connection, Result::kOk, {});
      return true;
  }
  return false;
}

void RendezvousServer::reply(Connection& connection, Result result, std::string_view value) {
  connection.output = encode_response(result, value);
}

void RendezvousServer::reply(Connection& connection, std::shared_ptr<const Value> value) {
  connection.output = encode_response_header(Result::kOk, value->bytes.size());
  connection.value = std::move(value);
}

bool RendezvousServer::store(std::string_view key, std::string_view value) {
  const auto [entry, fresh] = values_.try_emplace(std::string(key));
  const std::size_t before = fresh ? 0 : entry->second->bytes.size();
  const std::size_t added = (fresh ? key.size() : 0) + value.size();
  if (bytes_kept_ + added > kMaxKept + before) {
    if (fresh) {
      values_.erase(entry);
    }
    return false;
  }
  if (fresh) {
    bytes_kept_ += key.size();
    ++keys_;
  }
  entry->second = std::make_shared<const Value>(value, bytes_kept_);
  for (Connection& waiter : connections_) {
    if (waiter.waiting_for == key) {
      waiter.waiting_for.clear();
      reply(waiter, entry->second);
      write_to(waiter);
    }
  }
  return true;
}

void RendezvousServer::forget(const std::string& key) {
  if (values_.erase(key) > 0) {
    bytes_kept_ -= key.size();
    --keys_;
  }
  if (counters_.erase(key) > 0) {
    bytes_kept_ -= key.size() + sizeof(std::int64_t);
    --keys_;
  }
}

}  // namespace gtopk::bootstrap
