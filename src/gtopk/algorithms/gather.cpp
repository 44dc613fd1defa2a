#include "src/gtopk/algorithms/gather.hpp"

#include <cstdint>
#include <limits>
#include <utility>

#include "src/engine/external_work.hpp"
#include "src/gtopk/algorithms/call_types.hpp"
#include "src/gtopk/algorithms/delivery.hpp"
#include "src/numbers/element_types.hpp"

namespace gtopk::sparse {
namespace {

using engine::Computation;
using engine::ExternalWork;
using engine::GroupView;
using engine::Task;

void spoil(EntryType type, const List& list) {
  visit_floating(type.value, [&]<class Value>() {
    std::fill_n(reinterpret_cast<Value*>(list.values), list.size,
                std::numeric_limits<Value>::quiet_NaN());
  });
}

}  // namespace

Task<void*> accumulate_all(GroupView& group, const SparseCall& call) {
  if (!call.device) {
    void* const acc = sums_buffer(group, call, static_cast<std::size_t>(call.d));
    Computation accumulating = group.compute(call.d, [&] {
      visit_floating(call.dtype, [&]<class T>() {
        using Value = Accumulation<T>;
        static_cast<void>(
            accumulate<T, Value>(Segments<T>(call.tensor), static_cast<const Value*>(call.residual),
                                 static_cast<Value*>(acc), static_cast<std::size_t>(call.d)));
      });
    });
    co_await accumulating;
    co_return acc;
  }
  AccDevice* const device = call.device->device;
  if (device != nullptr) {
    ExternalWork asking(group,
                        [&](ExternalWork::Done done) { device->accumulate(std::move(done)); });
    co_await asking;
  }
  co_return call.device->sums;
}

void gather(const SparseCall& call, EntryType type, const List& list) {
  bool spoiled = false;
  visit_types(call.dtype, type, [&]<class T, class Index>() {
    using Value = Accumulation<T>;
    const auto [indices, values] = list.output<Value, Index>();
    const std::size_t count = list.size;
    std::size_t taken = 0;
    for_each_stretch_of_acc<T, 4096>(
        call, [&](std::size_t begin, const Value* acc, std::size_t length, bool finite) {
          spoiled |= !finite;
          for (; taken < count && indices[taken] < begin + length; ++taken) {
            values[taken] = acc[indices[taken] - begin];
          }
        });
  });
  if (spoiled) {
    spoil(type, list);
  }
}

void spoil_unless_finite(const AccOnDevice& there, EntryType type, const List& list) {
  if (*there.finite == 0) {
    spoil(type, list);
  }
}

}  // namespace gtopk::sparse
