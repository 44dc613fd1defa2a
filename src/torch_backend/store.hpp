// Torch backend: torch's Store as the store in which ranks meet.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "gtopk/key_value_store.hpp"
#include "src/torch_backend/store_connection.hpp"
#include "src/torch_backend/torch_headers.hpp"

namespace gtopk::torch_backend {

class TorchStore final : public KeyValueStore {
 public:
  /// Wraps a store. `connection` is the connection of a TCPStore's client; null if unknown.
  explicit TorchStore(c10::intrusive_ptr<c10d::Store> store,
                      std::shared_ptr<const StoreConnection> connection = nullptr)
      : store_(std::move(store)), connection_(std::move(connection)) {}

  void set(std::string_view key, std::string_view value) override;
  [[nodiscard]] std::optional<std::string> find(std::string_view key,
                                                std::chrono::nanoseconds at_most) override;
  std::int64_t add(std::string_view key, std::int64_t delta) override;
  void remove(std::string_view key) override;

 private:
  /// Calls torch's store; converts its errors to Error, naming the key.
  template <class F>
  auto calling(std::string_view what, std::string_view key, F f);

  c10::intrusive_ptr<c10d::Store> store_;
  std::shared_ptr<const StoreConnection> connection_;
};

/// Returns the directory in which a torch group meets: its store, and the job's store without the
/// group's prefixes.
[[nodiscard]] std::shared_ptr<Directory> directory_of(
    const c10::intrusive_ptr<c10d::Store>& group_store);

}  // namespace gtopk::torch_backend
