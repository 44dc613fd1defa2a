#include "src/gtopk/algorithms/delivery.hpp"

#include <algorithm>

#include "src/gtopk/algorithms/call_types.hpp"
#include "src/gtopk/residual/commit.hpp"
#include "src/gtopk/select/select_exact.hpp"
#include "src/numbers/accumulation.hpp"
#include "src/numbers/keep_denormals.hpp"

namespace gtopk::sparse {
namespace {

template <class T, class Index>
void commit_alike(const SparseCall& call, Entries<Accumulation<T>, Index> result,
                  Accumulation<T> divisor) {
  using Value = Accumulation<T>;
  const StepLists<Value, Index> lists{
      .own = result, .result = result, .put_back = call.options.put_back};
  commit<T, Value, Index>(Segments<T>(call.tensor), static_cast<Value*>(call.residual), call.d,
                          lists, divisor);
  if (call.options.momentum != nullptr) {
    mask(static_cast<Value*>(call.options.momentum), lists);
  }
}

void commit_alike(const SparseCall& call, std::uint32_t ranks, const List& result, bool happened) {
  visit_types(call, [&]<class T, class Index>() {
    if (happened) {
      commit_alike<T, Index>(call, result.entries<Accumulation<T>, Index>(),
                             divisor_of<Accumulation<T>>(call.options, ranks));
    } else {
      fill_nan(Segments<T>(call.tensor), call.d);
    }
  });
}

}  // namespace

void note(const Delivered& delivered, EntryType type, const List& result) {
  if (delivered.values == nullptr) {
    return;
  }
  visit_entry(type, [&]<class Value, class Index>() {
    const auto entries = result.entries<Value, Index>();
    std::copy_n(entries.indices, entries.size, delivered.indices);
    std::copy_n(entries.values, entries.size, static_cast<Value*>(delivered.values));
  });
}

bool finite(const SparseCall& call, std::uint32_t ranks, const List& result) {
  if (!result.finite) {
    return false;
  }
  bool fits = false;
  visit_types(call, [&]<class T, class Index>() {
    using Value = Accumulation<T>;
    fits = representable<T, Value, Index>(result.entries<Value, Index>(),
                                          divisor_of<Value>(call.options, ranks));
  });
  return fits;
}

List means_buffer(engine::GroupView& group, const SparseCall& call, const List& result) {
  List means = result;
  if (call.options.mean == MeanOver::kContributors) {
    means.values = group.buffer(result.size * call.entry_type().value_bytes()).data();
  }
  return means;
}

void divide_by_counts(const SparseCall& call, const List& result, const List& means) {
  if (call.options.mean != MeanOver::kContributors) {
    return;
  }
  const KeepDenormals guard;
  visit_entry(call.entry_type(), [&]<class Value, class Index>() {
    const Entries<Value, Index> sums = result.entries<Value, Index>();
    Value* const values = means.output<Value, Index>().values;
    for (std::size_t i = 0; i < sums.size; ++i) {
      const double count = result.counts == nullptr ? 1 : result.counts[i];
      values[i] = sums.values[i] / static_cast<Value>(count / call.options.scale);
    }
  });
}

void leave_to_device(const AccOnDevice& device, std::uint64_t entries, bool happened) {
  *device.counts = {};
  if (happened) {
    *device.counts = {.happened = 1, .cleared = entries, .returned = 0, .delivered = entries};
  }
}

engine::Task<void> deliver_alike(engine::GroupView& group, const SparseCall& call,
                                 std::function<List()> find) {
  List result;
  const auto decide = [&] {
    result = find();
    return finite(call, group.size(), result);
  };
  const auto finish = [&](bool happened) {
    if (call.device) {
      leave_to_device(*call.device, result.size, happened);
    } else {
      commit_alike(call, group.size(), result, happened);
    }
    if (happened) {
      note(call.delivered, call.entry_type(), result);
    }
  };
  engine::Task<void> settling =
      settle(group, call.gate.get(), call.d, std::ref(decide), std::ref(finish));
  co_await settling;
}

List entries_buffer(engine::GroupView& group, const SparseCall& call, std::size_t count) {
  const EntryType type = call.entry_type();
  List list;
  list.indices = group.buffer(count * type.index_bytes).data();
  list.values = group.buffer(count * type.value_bytes()).data();
  list.capacity = count;
  return list;
}

List result_buffer(engine::GroupView& group, const SparseCall& call, std::size_t count) {
  return call.device ? list_at(call.device->delivered, count) : entries_buffer(group, call, count);
}

void* sums_buffer(engine::GroupView& group, const SparseCall& call, std::size_t count) {
  return call.device ? call.device->sums
                     : group.buffer(count * call.entry_type().value_bytes()).data();
}

List largest_of(EntryType type, const void* sums, std::size_t count, List largest) {
  visit_entry(type, [&]<class Value, class Index>() {
    const Selection selection = select_exact<Value, Value, Index>(
        Segments<const Value>(static_cast<const Value*>(sums)), nullptr, count, largest.capacity,
        largest.output<Value, Index>(), select_scratch_of_this_thread());
    largest.size = selection.count;
    largest.finite = selection.finite;
  });
  return largest;
}

List list_at(const DetachedEntries& entries, std::size_t count) {
  List list;
  list.indices = static_cast<std::byte*>(entries.indices);
  list.values = static_cast<std::byte*>(entries.values);
  list.capacity = count;
  return list;
}

}  // namespace gtopk::sparse
