// Engine: how often the steady state allocates. Counts the engine, the collectives and the sparse
// algorithms, but not the in-process network's bookkeeping or the test's own.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "src/engine/compute.hpp"
#include "src/engine/engine.hpp"
#include "src/engine/flight_recorder.hpp"
#include "src/gtopk/algorithms/sparse_all_reduce.hpp"
#include "tests/reference/hosts.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/cases.hpp"
#include "tests/support/count_allocations.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/transport/inproc/fabric.hpp"

namespace gtopk {
namespace {

using support::Counting;
using transport::PeerId;
using transport::Request;
using transport::Tag;

/// A port whose own allocations are not counted.
class Uncounted final : public transport::Transport {
 public:
  explicit Uncounted(transport::Transport& port) : port_(port) {}
  [[nodiscard]] const transport::PeerInfo& self() const override { return port_.self(); }
  [[nodiscard]] std::string address() const override { return port_.address(); }
  PeerId add_peer(std::string_view address) override { return port_.add_peer(address); }
  [[nodiscard]] const transport::PeerInfo& peer(PeerId peer) const override {
    return port_.peer(peer);
  }
  [[nodiscard]] bool connected(PeerId peer) const override { return port_.connected(peer); }
  void send(PeerId peer, Tag tag, ConstBytes data, Request& request) override {
    const Counting off(false);
    port_.send(peer, tag, data, request);
  }
  void recv(PeerId peer, Tag tag, Bytes data, Request& request) override {
    const Counting off(false);
    port_.recv(peer, tag, data, request);
  }
  void cancel(Request& request) override { port_.cancel(request); }
  void give_up(PeerId peer) override { port_.give_up(peer); }
  [[nodiscard]] bool spent() const override { return port_.spent(); }
  void expect_departure(PeerId peer) override { port_.expect_departure(peer); }
  [[nodiscard]] bool lies_there(Tag tag) override { return port_.lies_there(tag); }
  std::size_t discard(Tag tag, Tag mask) override { return port_.discard(tag, mask); }
  std::size_t sift(const std::function<bool(Tag)>& ours) override { return port_.sift(ours); }
  bool progress() override {
    const Counting off(false);
    return port_.progress();
  }
  void wait(transport::Duration at_most) override { port_.wait(at_most); }
  void rest(transport::Duration at_most) override { port_.rest(at_most); }
  void wake() override { port_.wake(); }
  [[nodiscard]] std::vector<transport::PeerFailure> take_failures() override {
    return port_.take_failures();
  }
  void close(transport::Duration at_most) override { port_.close(at_most); }
  [[nodiscard]] std::string describe() const override { return port_.describe(); }

 private:
  transport::Transport& port_;
};

/// P engines over one fabric, stepped in turn.
class Ranks {
 public:
  explicit Ranks(std::uint32_t size) : fabric_(size) {
    std::vector<std::string> cards;
    std::vector<std::uint32_t> ids;
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      ports_.push_back(std::make_unique<Uncounted>(fabric_.port(rank)));
      engines_.push_back(
          std::make_unique<engine::Engine>(*ports_[rank], fabric_.clock(), executor_));
      engines_[rank]->flow_control().set_window(std::uint64_t{1} << 40U);  // credits allocate, too
      engines_[rank]->observers().add(
          *recorders_.emplace_back(std::make_unique<engine::FlightRecorder>(kRecorded)));
      cards.push_back(ports_[rank]->card());
      ids.push_back(engines_[rank]->reserve_group_id());
    }
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      groups_.push_back(
          engines_[rank]->add_group({"default", rank, cards, ids, {}, support::usual_hosts(size)}));
    }
  }

  /// Allocations of one all-reduce over all ranks, from submission to the end.
  std::size_t all_reduce(const std::string& algorithm, std::uint64_t d, std::uint64_t k) {
    const auto size = static_cast<std::uint32_t>(engines_.size());
    tensors_.assign(size, std::vector<float>(d));
    residuals_.assign(size, std::vector<float>(d));
    std::vector<engine::OperationSpec> specs;
    std::size_t ended = 0;
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      for (std::uint64_t i = 0; i < d; ++i) {
        tensors_[rank][i] = static_cast<float>((i * 2654435761UL + rank * 40503UL) % 1000);
      }
      sparse::SparseCall call;
      call.tensor = tensors_[rank].data();
      call.residual = residuals_[rank].data();
      call.d = d;
      call.options.k = k;
      call.options.algorithm = algorithm;
      specs.push_back(sparse::collective(call));
      specs.back().timeout = std::chrono::seconds(30);
      specs.back().done = [&ended](const std::exception_ptr& error) { ended += error ? 0 : 1; };
    }
    return run(std::move(specs), ended);
  }

  /// Allocations of one collective of d floats over all ranks; in those of parts, d for each.
  std::size_t dense(const std::string& collective, std::uint64_t d) {
    const std::size_t size = engines_.size();
    tensors_.assign(size, std::vector<float>(size * d, 1.0F));
    std::vector<engine::OperationSpec> specs;
    std::size_t ended = 0;
    for (std::vector<float>& tensor : tensors_) {
      if (collective == "all_reduce") {
        specs.push_back(gtopk::all_reduce(tensor.data(), d, DataType::kFloat32));
      } else if (collective == "reduce_scatter") {
        Buffers parts;
        for (std::size_t part = 0; part < size; ++part) {
          parts.push_back({&tensor[part * d], d, DataType::kFloat32});
        }
        specs.push_back(gtopk::reduce_scatter(parts, parts[specs.size()]));
      } else {
        Buffers buffers;
        for (std::size_t part = 0; part < size; ++part) {
          buffers.push_back(std::span(tensor).subspan(part * d, d));
        }
        specs.push_back(gtopk::all_gather(buffers));
      }
      specs.back().timeout = std::chrono::seconds(30);
      specs.back().done = [&ended](const std::exception_ptr& error) { ended += error ? 0 : 1; };
    }
    return run(std::move(specs), ended);
  }

  /// Allocations of messages from rank 0 to rank 1, `in_flight` of them at once.
  std::size_t point_to_point(std::size_t bytes, std::size_t in_flight) {
    std::size_t ended = 0;
    std::vector<engine::OperationSpec> specs;
    sent_.resize(bytes);
    received_.assign(in_flight, std::vector<std::byte>(bytes));
    for (std::size_t number = 0; number < in_flight; ++number) {
      const auto tag = static_cast<std::int32_t>(number / 2);
      specs.push_back(gtopk::send(sent_, 1, tag));
      specs.push_back(gtopk::recv(received_[number], 0, tag));
    }
    for (engine::OperationSpec& spec : specs) {
      spec.timeout = std::chrono::seconds(30);
      spec.done = [&ended](const std::exception_ptr& error) { ended += error ? 0 : 1; };
    }
    return run(std::move(specs), ended);
  }

 private:
  /// The specs are of ranks 0, 1, …, 0, 1, … in turn.
  std::size_t run(std::vector<engine::OperationSpec> specs, const std::size_t& ended) {
    const Counting off(false);
    const std::size_t before = support::allocations();
    for (std::size_t number = 0; number < specs.size(); ++number) {
      const std::size_t rank = number % engines_.size();
      const Counting on(true);
      engines_[rank]->submit(groups_[rank], std::move(specs[number]));
    }
    while (ended < specs.size()) {
      fabric_.deliver_one();
      for (const auto& engine : engines_) {
        const Counting on(true);
        static_cast<void>(engine->step());
      }
    }
    // Further steps free what is left of the operations.
    for (int again = 0; again < 50; ++again) {
      fabric_.deliver_one();
      for (const auto& engine : engines_) {
        static_cast<void>(engine->step());
      }
    }
    return support::allocations() - before;
  }

  static constexpr std::size_t kRecorded = 16;  // the recorder's ring wraps around, warming up

  std::vector<std::unique_ptr<engine::FlightRecorder>> recorders_;
  std::vector<std::unique_ptr<engine::Engine>> engines_;
  std::vector<std::shared_ptr<engine::Group>> groups_;
  engine::InlineExecutor executor_;
  std::vector<std::vector<float>> tensors_;
  std::vector<std::vector<float>> residuals_;
  std::vector<std::byte> sent_;
  std::vector<std::vector<std::byte>> received_;
  std::vector<std::unique_ptr<Uncounted>> ports_;
  transport::inproc::Fabric fabric_;  // destroyed first: its ports refer to requests
};

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kFramesAreReused = false;
#else
constexpr bool kFramesAreReused = true;
#endif

/// For the sweeps long enough for the executor: a job each, and the arguments of the first where
/// they are many: of a selection, and of a sketch.
std::size_t handed_over(const std::string& algorithm, std::uint64_t d, std::uint64_t k) {
  constexpr std::uint64_t kFew = engine::GroupView::kFewElements;
  const bool sketches = algorithm == "sketch" && !reference::SketchShape(d, k).dense;
  const std::size_t last = d > kFew ? 1 : 0;
  // Building and reading a sketch are two sweeps that touch five cells per element.
  if (sketches) {
    return (5 * d > kFew ? 3 : 0) + last;
  }
  const bool sums_acc =
      algorithm.starts_with("dense") || algorithm == "true-topk" || algorithm == "sketch";
  return (sums_acc ? 2 : 3) * last;
}

/// Allocations per rank of one operation in the steady state: the operation, its view, its entry in
/// the group's table, and its long sweeps.
std::size_t per_rank(const std::string& algorithm, std::uint64_t d, std::uint64_t k) {
  return 3 + handed_over(algorithm, d, k);
}

class Allocations : public ::testing::TestWithParam<std::string> {};

TEST_P(Allocations, SteadyState_IsFixedNumberPerRank) {
  // Sanitizer builds allocate like release builds, so a part of the table is enough there.
  const std::vector<std::uint32_t> sizes = support::kSanitized
                                               ? std::vector<std::uint32_t>{1, 3, 4}
                                               : std::vector<std::uint32_t>{1, 2, 3, 4, 8};
  const std::size_t shapes = support::kSanitized ? 2 : 5;
  constexpr std::array<std::pair<std::uint64_t, std::uint64_t>, 5> kShapes{
      {{5000, 300}, {40000, 20}, {100, 5}, {16000, 1600}, {5000, 20}}};
  for (const std::uint32_t size : sizes) {
    for (const auto& [d, k] : std::span(kShapes).first(shapes)) {
      Ranks ranks(size);
      // How many messages are in flight at once depends on their order of arrival.
      for (int warm_up = 0; warm_up < 40; ++warm_up) {
        static_cast<void>(ranks.all_reduce(GetParam(), d, k));
      }
      // Under AddressSanitizer coroutine frames are not reused (engine/task.hpp): more allocations,
      // but as constant.
      const std::size_t expected =
          kFramesAreReused ? size * per_rank(GetParam(), d, k) : ranks.all_reduce(GetParam(), d, k);
      for (int call = 0; call < 3; ++call) {
        EXPECT_EQ(ranks.all_reduce(GetParam(), d, k), expected) << "P=" << size << " d=" << d;
      }
    }
  }
}

TEST(DenseAllocations, SteadyState_IsFixedNumberPerRank) {
  for (const std::string collective : {"all_reduce", "reduce_scatter", "all_gather"}) {
    for (const std::uint32_t size : {2U, 3U, 4U}) {
      // By the ring in several pieces; of few elements an all-reduce goes along the tree, and an
      // all-gather directly, which lists its messages, in and out, and whom it hears first.
      std::vector<std::uint64_t> lengths{40'000, 150'000};
      if (collective != "reduce_scatter") {
        lengths.push_back(10);
      }
      for (const std::uint64_t d : lengths) {
        Ranks ranks(size);
        for (int warm_up = 0; warm_up < 20; ++warm_up) {
          static_cast<void>(ranks.dense(collective, d));
        }
        const std::size_t each = collective == "all_gather" && d == 10 ? 6 : 3;
        const std::size_t expected = kFramesAreReused ? each * size : ranks.dense(collective, d);
        for (int call = 0; call < 3; ++call) {
          EXPECT_EQ(ranks.dense(collective, d), expected)
              << collective << " P=" << size << " d=" << d;
        }
      }
    }
  }
}

/// The operation and its view.
constexpr std::size_t kPerTransfer = 2;

TEST(PointToPointAllocations, SteadyState_IsFixedNumberPerTransfer) {
  for (const std::size_t bytes : {0UL, 100UL, 8000UL, 100'000UL}) {
    for (const std::size_t in_flight : {1UL, 2UL, 30UL}) {
      Ranks ranks(2);
      for (int warm_up = 0; warm_up < 60; ++warm_up) {
        static_cast<void>(ranks.point_to_point(bytes, in_flight));
      }
      const std::size_t expected =
          kFramesAreReused ? 2 * in_flight * kPerTransfer : ranks.point_to_point(bytes, in_flight);
      for (int call = 0; call < 3; ++call) {
        EXPECT_EQ(ranks.point_to_point(bytes, in_flight), expected)
            << bytes << " bytes, " << in_flight << " in flight";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Every, Allocations, ::testing::ValuesIn(reference::algorithms()));

}  // namespace
}  // namespace gtopk
