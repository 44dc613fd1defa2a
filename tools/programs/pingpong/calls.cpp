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
  CallWire(const Ends& ends, const Gpu* gpu) : job_(ends.environment, ends.timeout, ends.store) {
    if (gpu != nullptr) {
      job_.use(*gpu);
    }
  }

  void send(std::uint32_t slot, ConstBytes data) override {
    begun_.push_back(job_.begin(
        gtopk::send(ConstBuffer(data, DataType::kUint8), peer(), static_cast<std::int32_t>(slot))));
  }
  void recv(std::uint32_t slot, Bytes data) override {
    begun_.push_back(job_.begin(
        gtopk::recv(Buffer(data, DataType::kUint8), peer(), static_cast<std::int32_t>(slot))));
  }
  [[nodiscard]] bool takes(Memory::Kind kind, std::uint64_t bytes) const override {
    return bytes > kShortMessage && job_.takes(kind, peer());
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

std::unique_ptr<Wire> call_wire(const Ends& ends, const Gpu* gpu) {
  return std::make_unique<CallWire>(ends, gpu);
}

}  // namespace gtopk::programs::pingpong
