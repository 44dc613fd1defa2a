// Tests of the algorithms room: a device that has acc of a sparse all-reduce in which no rank
// selects, made of the kernels on the host executor. It does what it is asked for when the test
// says so, late.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "gtopk/collectives.hpp"
#include "gtopk/device_acc.hpp"
#include "src/cuda/typed_calls.hpp"
#include "src/numbers/element_types.hpp"
#include "src/reference/reference.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/host_executor.hpp"

namespace gtopk::sparse::testing {

/// One rank's.
class HostAcc final : public AccDevice {
 public:
  /// `delivered`: where the result is to be recorded.
  HostAcc(const reference::Problem& problem, support::Tensor& tensor, std::uint64_t seed,
          const Delivered& delivered = {})
      : problem_(problem), delivered_(delivered), executor_(seed, 1 + seed % 3) {
    const auto room = acc_room(problem.d, problem.type, problem.options);
    if (!room) {
      return;
    }
    room_ = *room;
    lists_.device = room_.whole ? nullptr : this;
    lists_.sums = block(room_.sums * value_bytes());
    lists_.delivered = {block(room_.delivered * room_.index_bytes),
                        block(room_.delivered * value_bytes())};
    lists_.candidates = {block(room_.candidates * room_.index_bytes),
                         block(room_.candidates * value_bytes())};
    lists_.finite = &finite_;
    lists_.report = &report_;
    lists_.counts = &counts_;
    piece_.tensor = tensor.values.data();
    piece_.residual = tensor.residual ? tensor.residual->data() : nullptr;
    piece_.size = problem.d;
    acc_.dtype = problem.type;
    acc_.index_bytes = room_.index_bytes;
    acc_.pieces = &piece_;
    acc_.count = 1;
    acc_.d = problem.d;
    acc_.tiles = device::number_tiles(reinterpret_cast<device::Piece<float>*>(&piece_), 1);
    can_ = true;
  }

  /// Whether the problem can be called so.
  [[nodiscard]] bool can() const { return can_; }

  [[nodiscard]] Collective begin_and_call() {
    if (room_.whole) {
      visit_floating(problem_.type, [&]<class T>() {
        cuda::accumulate<T>(executor_, cuda::AccumulateCall{acc_, lists_.sums});
      });
    }
    return gtopk::sparse_all_reduce(lists_, problem_.d, problem_.type, problem_.options,
                                    delivered_);
  }
  void commit() {
    visit_floating(problem_.type, [&]<class T>() {
      if (room_.delivered == 0) {
        cuda::commit_whole<T>(executor_,
                              cuda::CommitWholeCall{acc_, lists_.sums, &counts_, divisor()});
        return;
      }
      cuda::CommitCall call;
      call.acc = acc_;
      call.cleared = lists_.delivered.indices;
      call.delivered = {lists_.delivered.indices, lists_.delivered.values, 0};
      call.counts = &counts_;
      call.divisor = divisor();
      cuda::commit<T>(executor_, call);
    });
  }

  /// Does one piece of what it was asked for; false if there is none.
  bool work() {
    if (asked_.empty()) {
      return false;
    }
    const std::function<void()> work = std::move(asked_.front());
    asked_.pop_front();
    work();
    return true;
  }
  [[nodiscard]] std::size_t asked() const { return asked_.size(); }
  /// From now on everything fails so.
  void break_with(std::exception_ptr error) { broken_ = std::move(error); }

  void gather(const DeviceGather& wanted, Done done) override {
    ask(std::move(done), [this, wanted] {
      visit_floating(problem_.type, [&]<class T>() {
        cuda::gather<T>(executor_, cuda::GatherCall{acc_, wanted.indices, wanted.count,
                                                    wanted.values, wanted.finite});
      });
    });
  }
  void sketch(const DeviceSketch& wanted, Done done) override {
    ask(std::move(done), [this, wanted] {
      visit_floating(problem_.type, [&]<class T>() {
        cuda::SketchCall call;
        call.acc = acc_;
        call.seed = wanted.seed;
        call.columns = wanted.columns;
        call.room = sketch_room<Accumulation<T>>();
        call.cells = wanted.cells;
        cuda::sketch<T>(executor_, call);
      });
    });
  }
  void find(const DeviceFind& wanted, Done done) override {
    ask(std::move(done), [this, wanted] {
      visit_floating(problem_.type, [&]<class T>() {
        cuda::FindCall call;
        call.index_bytes = room_.index_bytes;
        call.d = problem_.d;
        call.seed = wanted.seed;
        call.columns = wanted.columns;
        call.cells = wanted.cells;
        call.most = wanted.most;
        call.room = sketch_room<Accumulation<T>>();
        call.heaviest = {wanted.heaviest.indices, wanted.heaviest.values, wanted.most};
        call.report = wanted.report;
        cuda::find<Accumulation<T>>(executor_, call);
      });
    });
  }

 private:
  template <class Value>
  void* sketch_room() {
    return block(cuda::sketch_room<Value>(room_.columns, problem_.d, room_.candidates));
  }
  /// Exactly so much: a sanitizer sees what is written behind it.
  void* block(std::size_t bytes) {
    blocks_.push_back(std::make_unique<std::byte[]>(bytes));
    return blocks_.back().get();
  }
  [[nodiscard]] std::size_t value_bytes() const {
    return size_of(accumulation_type(problem_.type));
  }
  [[nodiscard]] double divisor() const {
    return detached_divisor(problem_.options, static_cast<std::uint32_t>(problem_.ranks.size()));
  }

  void ask(Done done, std::function<void()> work) {
    asked_.push_back([this, done = std::move(done), work = std::move(work)] {
      if (broken_) {
        return done(broken_);
      }
      work();
      done(nullptr);
    });
  }

  const reference::Problem& problem_;
  const Delivered delivered_;
  HostExecutor executor_;
  bool can_ = false;
  AccRoom room_;
  std::uint64_t finite_ = 1;
  SelectionReport report_;
  EditCounts counts_;
  AccOnDevice lists_;
  cuda::PieceOf piece_;
  cuda::VectorOf acc_;
  std::vector<std::unique_ptr<std::byte[]>> blocks_;
  std::deque<std::function<void()>> asked_;
  std::exception_ptr broken_;
};

}  // namespace gtopk::sparse::testing
