// Tests, algorithms: a device that has acc of a sparse all-reduce in which no rank
// selects, or whose algorithm is `auto`'s choice, made of the kernels on the host executor. It does
// what it is asked for late (late_work.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "gtopk/collectives.hpp"
#include "gtopk/device_acc.hpp"
#include "gtopk/selection_rule.hpp"
#include "src/cuda/typed_calls.hpp"
#include "src/numbers/element_types.hpp"
#include "tests/gtopk/algorithms/late_work.hpp"
#include "tests/reference/reference.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/host_executor.hpp"

namespace gtopk::sparse::testing {

/// One rank's.
class HostAcc final : public AccDevice, public LateWork {
 public:
  /// `delivered`: where the result is to be recorded.
  HostAcc(const reference::Problem& problem, support::Tensor& tensor, std::uint64_t seed,
          const Delivered& delivered = {})
      : problem_(problem), delivered_(delivered), executor_(seed, 1 + seed % 3) {
    const auto alone = acc_capacity(problem.d, problem.type, problem.options);
    const auto ranks = static_cast<std::uint32_t>(problem.ranks.size());
    const auto both = auto_capacity(problem.d, problem.type, problem.options, ranks);
    if (!alone && !both) {
      return;
    }
    capacity_ = both ? both->acc : *alone;
    if (both) {
      rule_ = selection_rule(problem.d, problem.type, problem.options).value();
      selected_.selected = entries(both->lists.selected);
      selected_.cleared = block(both->lists.cleared * capacity_.index_bytes);
      selected_.returned = entries(both->lists.returned);
      selected_.delivered = entries(both->lists.delivered);
      selected_.report = &report_;
      selected_.counts = &counts_of_lists_;
    }
    lists_.device = both || capacity_.columns != 0 ? this : nullptr;
    lists_.sums = block(capacity_.sums * value_bytes());
    lists_.delivered = entries(capacity_.delivered);
    lists_.candidates = entries(capacity_.candidates);
    lists_.finite = &finite_;
    lists_.report = &report_;
    lists_.counts = &counts_;
    piece_.tensor = tensor.values.data();
    piece_.residual = tensor.residual ? tensor.residual->data() : nullptr;
    piece_.size = problem.d;
    acc_.dtype = problem.type;
    acc_.pieces = &piece_;
    acc_.count = 1;
    acc_.d = problem.d;
    acc_.tiles = device::number_tiles(reinterpret_cast<device::Piece<float>*>(&piece_), 1);
    can_ = true;
  }

  /// Whether the problem can be called so.
  [[nodiscard]] bool can() const { return can_; }

  [[nodiscard]] Collective begin_and_call() {
    if (rule_) {
      visit_floating(problem_.type, [&]<class T>() {
        cuda::SelectCall call;
        call.acc = acc_;
        call.rule = *rule_;
        call.workspace = block(cuda::select_workspace_bytes<T>(acc_, *rule_));
        call.kept = {selected_.selected.indices, selected_.selected.values, rule_->most};
        call.report = &report_;
        cuda::select<T>(executor_, call);
      });
      return gtopk::sparse_all_reduce(AutoOnDevice{selected_, lists_}, problem_.d, problem_.type,
                                      problem_.options);
    }
    visit_floating(problem_.type, [&]<class T>() {
      if (capacity_.whole) {
        cuda::accumulate<T>(executor_, cuda::AccumulateCall{acc_, lists_.sums});
      } else if (capacity_.drawn) {
        draw_indices(capacity_, problem_.d, seed(), lists_.delivered.indices);
        gather<T>(lists_.delivered, capacity_.delivered);
      } else {
        sketch<T>();
      }
    });
    return gtopk::sparse_all_reduce(lists_, problem_.d, problem_.type, problem_.options,
                                    delivered_);
  }
  void commit() {
    visit_floating(problem_.type, [&]<class T>() {
      if (rule_ || capacity_.delivered == 0) {
        cuda::commit_whole<T>(executor_,
                              cuda::CommitWholeCall{acc_, lists_.sums, &counts_, divisor(),
                                                    rule_ ? &whole_ : nullptr});
      }
      if (!rule_ && capacity_.delivered == 0) {
        return;
      }
      cuda::CommitCall call;
      call.acc = acc_;
      call.cleared = rule_ ? selected_.cleared : lists_.delivered.indices;
      call.returned = {selected_.returned.indices, selected_.returned.values, 0};
      const DetachedEntries& delivered = rule_ ? selected_.delivered : lists_.delivered;
      call.delivered = {delivered.indices, delivered.values, 0};
      call.counts = rule_ ? &counts_of_lists_ : &counts_;
      call.divisor = divisor();
      call.unless = rule_ ? &whole_ : nullptr;
      cuda::commit<T>(executor_, call);
    });
  }

  void accumulate(Done done) override {
    ask(std::move(done), [this] {
      whole_ = 1;
      visit_floating(problem_.type, [&]<class T>() {
        cuda::accumulate<T>(executor_, cuda::AccumulateCall{acc_, lists_.sums, &whole_});
      });
    });
  }
  void find(Done done) override {
    ask(std::move(done), [this] {
      visit_floating(problem_.type, [&]<class T>() {
        cuda::FindCall call;
        call.d = problem_.d;
        call.seed = seed();
        call.columns = capacity_.columns;
        call.cells = lists_.sums;
        call.most = capacity_.candidates;
        call.workspace = sketch_workspace<Accumulation<T>>();
        call.heaviest = {lists_.candidates.indices, lists_.candidates.values, call.most};
        call.report = &report_;
        cuda::find<Accumulation<T>>(executor_, call);
        gather<T>(lists_.candidates, report_.kept);
      });
    });
  }

 private:
  [[nodiscard]] std::uint64_t seed() const {
    return problem_.options.seed.value_or(problem_.number);
  }
  template <class T>
  void gather(const DetachedEntries& entries, std::uint64_t count) {
    cuda::gather<T>(executor_,
                    cuda::GatherCall{acc_, entries.indices, count, entries.values, &finite_});
  }
  template <class T>
  void sketch() {
    cuda::SketchCall call;
    call.acc = acc_;
    call.seed = seed();
    call.columns = capacity_.columns;
    call.workspace = sketch_workspace<Accumulation<T>>();
    call.cells = lists_.sums;
    cuda::sketch<T>(executor_, call);
  }
  template <class Value>
  void* sketch_workspace() {
    return block(
        cuda::sketch_workspace_bytes<Value>(capacity_.columns, problem_.d, capacity_.candidates));
  }
  /// Exactly so much: a sanitizer sees what is written behind it.
  void* block(std::size_t bytes) {
    blocks_.push_back(std::make_unique<std::byte[]>(bytes));
    return blocks_.back().get();
  }
  DetachedEntries entries(std::uint64_t count) {
    void* const indices = block(count * capacity_.index_bytes);
    return {indices, block(count * value_bytes())};
  }
  [[nodiscard]] std::size_t value_bytes() const {
    return size_of(accumulation_type(problem_.type));
  }
  [[nodiscard]] double divisor() const {
    return detached_divisor(problem_.options, static_cast<std::uint32_t>(problem_.ranks.size()));
  }

  const reference::Problem& problem_;
  const Delivered delivered_;
  HostExecutor executor_;
  bool can_ = false;
  AccCapacity capacity_;
  std::uint64_t finite_ = 1;
  SelectionReport report_;
  EditCounts counts_;
  AccOnDevice lists_;
  std::uint64_t whole_ = 0;            ///< of `auto`: it has asked for all of acc
  std::optional<SelectionRule> rule_;  ///< of `auto`
  EditCounts counts_of_lists_;
  Detached selected_;
  cuda::PieceOf piece_;
  cuda::VectorOf acc_;
  std::vector<std::unique_ptr<std::byte[]>> blocks_;
};

}  // namespace gtopk::sparse::testing
