// Sparse, algorithms: `dense`, which sends all of acc and leaves no residual. It is the baseline
// for sparse results. acc is sent in the accumulation type; collectives/all_reduce.hpp has the
// order of summation. A wire that codes values uses dense_coded.cpp instead.
#include <algorithm>
#include <functional>

#include "src/collectives/all_reduce.hpp"
#include "src/gtopk/algorithms/algorithm.hpp"
#include "src/gtopk/algorithms/coded_regions.hpp"
#include "src/gtopk/algorithms/delivery.hpp"
#include "src/gtopk/algorithms/dense.hpp"
#include "src/gtopk/algorithms/gather.hpp"
#include "src/gtopk/residual/commit.hpp"
#include "src/numbers/accumulation.hpp"
#include "src/numbers/element_types.hpp"

namespace gtopk::sparse {
namespace {

using engine::GroupView;
using engine::Task;

template <class T>
bool fits(const SparseCall& call, const void* acc, std::uint32_t ranks) {
  using Value = Accumulation<T>;
  return all_representable<T, Value>(static_cast<const Value*>(acc),
                                     static_cast<std::size_t>(call.d),
                                     divisor_of<Value>(call.options, ranks));
}

template <class T>
void commit_sums(const SparseCall& call, const void* acc, std::uint32_t ranks, bool happened) {
  using Value = Accumulation<T>;
  const auto* const sums = static_cast<const Value*>(acc);
  const auto d = static_cast<std::size_t>(call.d);
  if (call.device) {
    leave_to_device(*call.device, 0, happened);
  } else if (happened) {
    commit_whole<T, Value>(Segments<T>(call.tensor), static_cast<Value*>(call.residual), sums, d,
                           divisor_of<Value>(call.options, ranks));
  } else {
    fill_nan(Segments<T>(call.tensor), d);
  }
  if (happened && call.delivered.values != nullptr) {
    std::copy_n(sums, d, static_cast<Value*>(call.delivered.values));
  }
}

Task<void> dense(GroupView& group, SparseCall call) {
  const auto d = static_cast<std::size_t>(call.d);
  // acc is a copy because the gradient must be preserved if the ranks' calls differ.
  group.enter("compress");
  Task<void*> accumulating = accumulate_all(group, call);
  void* const acc = co_await accumulating;

  group.enter("exchange");
  co_await collectives::reduce_over_ranks(group, acc, d, accumulation_type(call.dtype),
                                          ReduceOp::kSum);

  // A non-finite acc on any rank makes a sum non-finite, which every rank sees.
  const auto decide = [&] {
    bool finite = false;
    visit_floating(call.dtype, [&]<class T>() { finite = fits<T>(call, acc, group.size()); });
    return finite;
  };
  const auto finish = [&](bool happened) {
    visit_floating(call.dtype,
                   [&]<class T>() { commit_sums<T>(call, acc, group.size(), happened); });
  };
  Task<void> settling = settle(group, call.gate.get(), call.d, std::ref(decide), std::ref(finish));
  co_await settling;
}

AccCapacity dense_on_device(std::uint64_t d, std::uint64_t /*k*/) {
  return {.whole = true, .sums = d};
}

/// The cost of coding. Coding an element takes about as long as adding one; coded are acc, the
/// contributions and the sums.
void coded_cost(CriticalPath& path, const BlockCoder& coder) {
  const std::uint64_t d = path.shape().d;
  const std::uint32_t ranks = path.tree().ranks();
  const std::size_t region = CodedRegions(coder, path.shape().type.value, d, ranks).most_bytes();
  path.sweep_whole();
  path.add(3 * d);
  path.agree();
  path.spread(region, ranks, path.between_all());
  path.spread(region, ranks, path.between_all());
}

void dense_cost(CriticalPath& path) {
  if (const BlockCoder* const coder = path.shape().codec->blocks()) {
    return coded_cost(path, *coder);
  }
  path.sweep_whole();
  path.reduce(path.shape().d);
}

/// The path of the largest host's lowest rank, which adds up its host's accs one after the other.
void dense_placed_cost(CriticalPath& path) {
  const collectives::Routes& routes = path.routes();
  const BlockCoder* const coder = path.shape().codec->blocks();
  if (coder == nullptr || routes.hosts() == path.tree().ranks()) {
    return dense_cost(path);
  }
  const std::uint64_t d = path.shape().d;
  const DataType value = path.shape().type.value;
  const CodedRegions regions(*coder, value, d, routes.hosts());
  path.sweep_whole();
  path.add(3 * d);
  path.agree();
  for (std::uint32_t other = 1; other < routes.largest_host(); ++other) {
    path.message(d * size_of(value), collectives::kWithin);
    path.add(d);
    path.message(regions.bytes_of(static_cast<std::size_t>(d)), collectives::kWithin);
  }
  path.spread(regions.most_bytes(), routes.hosts(), collectives::kOneOfEachHost);
  path.spread(regions.most_bytes(), routes.hosts(), collectives::kOneOfEachHost);
}

}  // namespace

const AlgorithmRow kDense{
    .name = "dense",
    .description = "the whole vector travels; only what coding it loses is left behind",
    .bounded = false,
    .whole = dense,
    .coded = dense_coded,
    .on_device = dense_on_device,
    .cost = dense_cost,
    .keeps = Semantics::kDense};

const AlgorithmRow kDensePlaced{
    .name = "dense-placed",
    .description = "dense, with one rank of each host coding and sending for all of them",
    .bounded = false,
    .whole = dense,
    .coded = dense_placed_coded,
    .only_coded = true,
    .on_device = dense_on_device,
    .cost = dense_placed_cost,
    .keeps = Semantics::kDense};

}  // namespace gtopk::sparse
