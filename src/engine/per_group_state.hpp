// Engine: the objects that collectives keep with a group from one call to the next: one object per
// type, created on first use. This module knows none of these types.
#pragma once

#include <map>
#include <memory>
#include <typeindex>

namespace gtopk::engine {

/// Used only on the engine thread.
class PerGroupState {
 public:
  template <class T>
  [[nodiscard]] T& of() {
    std::shared_ptr<void>& kept = kept_[std::type_index(typeid(T))];
    if (!kept) {
      kept = std::make_shared<T>();
    }
    return *static_cast<T*>(kept.get());
  }

 private:
  std::map<std::type_index, std::shared_ptr<void>> kept_;
};

}  // namespace gtopk::engine
