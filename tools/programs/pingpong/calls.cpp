#include <future>
#include <utility>
#include <vector>

#include "gtopk/collectives.hpp"
#include "tools/programs/job.hpp"
#include "tools/programs/pingpong/wire.hpp"

namespace gtopk::programs::pingpong {
namespace {

class CallWire final : public Wire {
 public:
  explicit CallWire(const Ends& ends) : job_(ends.environment, ends.timeout, ends.store) {}

  void send(std::uint32_t slot, std::span<const std::byte> data) override {
    begun_.push_back(job_.begin(gtopk::send(data, peer(), static_cast<std::int32_t>(slot))));
  }
  void recv(std::uint32_t slot, std::span<std::byte> data) override {
    begun_.push_back(job_.begin(gtopk::recv(data, peer(), static_cast<std::int32_t>(slot))));
  }
  void finish() override {
    for (std::future<void>& one : begun_) {
      one.get();
    }
    begun_.clear();
  }
  [[nodiscard]] std::string describe() const override { return job_.transport(); }

 private:
  [[nodiscard]] std::uint32_t peer() const { return 1 - job_.rank(); }

  Job job_;
  std::vector<std::future<void>> begun_;
};

}  // namespace

std::unique_ptr<Wire> call_wire(const Ends& ends) { return std::make_unique<CallWire>(ends); }

}  // namespace gtopk::programs::pingpong
