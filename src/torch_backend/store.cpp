#include "torch_backend/store.hpp"

#include <algorithm>
#include <chrono>

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

std::string TorchStore::get(std::string_view key, bootstrap::Duration at_most) {
  const auto wait =
      std::max(std::chrono::ceil<std::chrono::milliseconds>(at_most), std::chrono::milliseconds(1));
  return calling(c10::str("waiting ", std::chrono::duration<double>(at_most).count(), " s for"),
                 key, [&] {
                   store_->wait({std::string(key)}, wait);
                   const std::vector<std::uint8_t> value = store_->get(std::string(key));
                   return std::string(value.begin(), value.end());
                 });
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
