// Engine: the observer that feeds each group's statistics.
#pragma once

#include "src/engine/group.hpp"
#include "src/engine/observer.hpp"

namespace gtopk::engine {

class Meter final : public Observer {
 public:
  void started(const OperationEvent& event) override;
  void phase(const OperationEvent& event, std::string_view name) override;
  void ended(const OperationEvent& event, const Error* error) override;
};

}  // namespace gtopk::engine
