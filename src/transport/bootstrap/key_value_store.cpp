#include "gtopk/key_value_store.hpp"

#include <fmt/format.h>

#include "gtopk/error.hpp"
#include "src/transport/bootstrap/socket.hpp"

namespace gtopk {

std::string KeyValueStore::get(std::string_view key, std::chrono::nanoseconds at_most) {
  if (std::optional<std::string> value = find(key, at_most)) {
    return *std::move(value);
  }
  throw Error(ErrorKind::kBootstrap,
              fmt::format("'{}' was not set within {}: did a rank fail, or not start?", key,
                          bootstrap::describe(at_most)));
}

}  // namespace gtopk
