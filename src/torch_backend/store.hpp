// Torch backend: torch's Store as the bootstrap's dictionary.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "torch_backend/torch_headers.hpp"
#include "transport/bootstrap/key_value_store.hpp"

namespace gtopk::torch_backend {

class TorchStore final : public bootstrap::KeyValueStore {
 public:
  explicit TorchStore(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  void set(std::string_view key, std::string_view value) override;
  [[nodiscard]] std::optional<std::string> find(std::string_view key,
                                                bootstrap::Duration at_most) override;
  std::int64_t add(std::string_view key, std::int64_t delta) override;
  void remove(std::string_view key) override;

 private:
  c10::intrusive_ptr<c10d::Store> store_;
};

/// The store of the whole job under the prefixes of one group.
[[nodiscard]] c10::intrusive_ptr<c10d::Store> job_store(
    const c10::intrusive_ptr<c10d::Store>& group_store);

}  // namespace gtopk::torch_backend
