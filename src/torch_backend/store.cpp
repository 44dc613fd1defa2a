#include "torch_backend/store.hpp"

#include <chrono>
#include <exception>
#include <vector>

#include "gtopk/error.hpp"

namespace gtopk::torch_backend {
namespace {

/// Calls torch's store; its errors become ours, with the key.
template <class F>
auto calling(std::string_view what, std::string_view key, F f) {
  try {
    return f();
  } catch (const std::exception& error) {
    throw Error(ErrorKind::kBootstrap,
                c10::str("torch's Store: ", what, " '", key, "': ", error.what()));
  }
}

}  // namespace

void TorchStore::set(std::string_view key, std::string_view value) {
  calling("setting", key, [&] {
    store_->set(std::string(key), std::vector<std::uint8_t>(value.begin(), value.end()));
  });
}

std::optional<std::string> TorchStore::find(std::string_view key, bootstrap::Duration at_most) {
  const std::vector<std::string> keys{std::string(key)};
  return calling("looking for", key, [&]() -> std::optional<std::string> {
    bool there = false;
    if (at_most > bootstrap::Duration::zero()) {
      try {
        store_->wait(keys, std::chrono::ceil<std::chrono::milliseconds>(at_most));
        there = true;
      } catch (const std::exception&) {
        // The time is up or the store has failed, and torch has no one exception for either: a
        // store that has failed says so again.
        there = store_->check(keys);
      }
    } else {
      there = store_->check(keys);
    }
    if (!there) return std::nullopt;
    const std::vector<std::uint8_t> value = store_->get(keys.front());
    return std::string(value.begin(), value.end());
  });
}

void TorchStore::remove(std::string_view key) {
  try {
    store_->deleteKey(std::string(key));
  } catch (const std::exception&) {  // not every store can
  }
}

std::int64_t TorchStore::add(std::string_view key, std::int64_t delta) {
  return calling("adding to", key, [&] { return store_->add(std::string(key), delta); });
}

c10::intrusive_ptr<c10d::Store> job_store(const c10::intrusive_ptr<c10d::Store>& group_store) {
  if (auto* const prefixed = dynamic_cast<c10d::PrefixStore*>(group_store.get())) {
    return prefixed->getUnderlyingNonPrefixStore();
  }
  return group_store;
}

}  // namespace gtopk::torch_backend
