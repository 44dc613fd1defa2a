// Test support: the kernels' library of the fake device: the same kernels as a GPU's, run by the
// host executor on the stream's thread. Only they and copies find the device's memory.
//
// FAKE_DEVICE_KERNEL=wrong:select changes a bit of what each select has written; crash:select ends
// the process there, and with hang:select it never ends; more:select launches one kernel more.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <set>
#include <string>
#include <typeindex>
#include <vector>

#include "device.hpp"
#include "src/cuda/calls.hpp"
#include "src/cuda/typed_calls.hpp"
#include "src/numbers/half.hpp"
#include "tests/support/host_executor.hpp"

namespace {

using gtopk::DataType;
using gtopk::cuda::AccumulateCall;
using gtopk::cuda::CommitCall;
using gtopk::cuda::CommitWholeCall;
using gtopk::cuda::FindCall;
using gtopk::cuda::GatherCall;
using gtopk::cuda::ListOf;
using gtopk::cuda::PieceOf;
using gtopk::cuda::SelectCall;
using gtopk::cuda::SketchCall;
using gtopk::cuda::VectorOf;
using gtopk::sparse::testing::HostExecutor;

/// Where a kernel finds it.
template <class T>
T* reachable(T* memory) {
  return static_cast<T*>(fake::Memory::reachable(memory));
}

ListOf reachable_list(const ListOf& list) {
  return {reachable(list.indices), reachable(list.values), list.size};
}

/// The table of a vector's pieces, as it is when the stream comes to it.
class Reachable {
 public:
  explicit Reachable(const VectorOf& acc) : acc_(acc) {
    const PieceOf* const table = reachable(acc.pieces);
    pieces_.assign(table, table + acc.count);
    for (PieceOf& piece : pieces_) {
      piece.tensor = reachable(piece.tensor);
      piece.residual = reachable(piece.residual);
    }
    acc_.pieces = pieces_.data();
  }
  [[nodiscard]] const VectorOf& view() const { return acc_; }

 private:
  VectorOf acc_;
  std::vector<PieceOf> pieces_;
};

constexpr std::uint64_t kWide = 3;

/// The kernels that load() has seen.
std::set<std::type_index>& loaded() {
  static std::set<std::type_index> all;
  return all;
}

class Loader {
 public:
  [[nodiscard]] std::uint64_t wide() const { return 1; }
  template <class Kernel>
  void launch(std::uint64_t /*blocks*/, const Kernel& /*kernel*/) {
    loaded().insert(typeid(Kernel));
  }
};

std::atomic<std::uint64_t> launches = 0;

std::uint64_t launched() { return launches; }

/// Counts launches, and those of kernels that nobody has loaded.
class Executor {
 public:
  explicit Executor(std::uint64_t seed) : executor_(seed, kWide) {}
  [[nodiscard]] std::uint64_t wide() const { return executor_.wide(); }
  template <class Kernel>
  void launch(std::uint64_t blocks, const Kernel& kernel) {
    if (!loaded().contains(typeid(Kernel))) {
      fake::count("launched_unloaded");
    }
    executor_.launch(blocks, kernel);
    ++launches;
  }

 private:
  HostExecutor executor_;
};

/// Whether FAKE_DEVICE_KERNEL says this of the kernel.
bool shall(const char* fault, const std::string& kernel) {
  const char* const said = std::getenv("FAKE_DEVICE_KERNEL");
  return said != nullptr && said == fault + (":" + kernel);
}

/// Runs task.operator()<T>(executor) on the stream. It returns where the first of its results is.
template <class Task>
int on_stream(const char* name, void* stream, DataType type, Task task) {
  fake::count(name);
  if (fake::fails(name)) {
    return 1;
  }
  const bool wrong = shall("wrong", name);
  const bool crashes = shall("crash", name);
  const bool more = shall("more", name);
  const auto run = [type, task, wrong, crashes, more] {
    static std::uint64_t seed = 0;  // one thread runs all streams
    Executor executor(++seed);
    void* result = nullptr;
    switch (type) {
      case DataType::kFloat32:
        result = task.template operator()<float>(executor);
        break;
      case DataType::kFloat64:
        result = task.template operator()<double>(executor);
        break;
      case DataType::kBfloat16:
        result = task.template operator()<gtopk::Bfloat16>(executor);
        break;
      default:
        result = task.template operator()<gtopk::Float16>(executor);
    }
    if (wrong) {
      *static_cast<std::byte*>(result) ^= std::byte{1};
    }
    if (crashes) {
      std::abort();
    }
    if (more) {
      executor.launch(1, gtopk::sparse::device::Nothing{});
    }
  };
  auto& on = *static_cast<fake::Stream*>(stream);
  if (shall("hang", name)) {
    fake::enqueue(on, run, [] { return false; });
  } else {
    fake::enqueue(on, run);
  }
  return 0;
}

std::uint64_t number_tiles(PieceOf* pieces, std::uint32_t count) {
  namespace device = gtopk::sparse::device;
  return device::number_tiles(reinterpret_cast<device::Piece<float>*>(pieces), count);
}

std::size_t select_workspace_bytes(const VectorOf& acc, const gtopk::SelectionRule& rule) {
  return acc.dtype == DataType::kFloat64 ? gtopk::cuda::select_workspace_bytes<double>(acc, rule)
                                         : gtopk::cuda::select_workspace_bytes<float>(acc, rule);
}

int select(const SelectCall& call, void* stream) {
  return on_stream("select", stream, call.acc.dtype, [call]<class T>(Executor& executor) -> void* {
    const Reachable acc(call.acc);
    SelectCall here = call;
    here.acc = acc.view();
    here.workspace = reachable(call.workspace);
    here.kept = reachable_list(call.kept);
    gtopk::cuda::select<T>(executor, here);
    return here.kept.values;
  });
}

int commit(const CommitCall& call, void* stream) {
  return on_stream("commit", stream, call.acc.dtype, [call]<class T>(Executor& executor) -> void* {
    const Reachable acc(call.acc);
    CommitCall here = call;
    here.acc = acc.view();
    here.momentum = reachable(call.momentum);
    gtopk::cuda::commit<T>(executor, here);
    return here.acc.pieces->tensor;
  });
}

int accumulate(const AccumulateCall& call, void* stream) {
  return on_stream("accumulate", stream, call.acc.dtype,
                   [call]<class T>(Executor& executor) -> void* {
                     const Reachable acc(call.acc);
                     AccumulateCall here = call;
                     here.acc = acc.view();
                     gtopk::cuda::accumulate<T>(executor, here);
                     return here.to;
                   });
}

int gather(const GatherCall& call, void* stream) {
  return on_stream("gather", stream, call.acc.dtype, [call]<class T>(Executor& executor) -> void* {
    const Reachable acc(call.acc);
    GatherCall here = call;
    here.acc = acc.view();
    gtopk::cuda::gather<T>(executor, here);
    return here.values;
  });
}

int commit_whole(const CommitWholeCall& call, void* stream) {
  return on_stream("commit_whole", stream, call.acc.dtype,
                   [call]<class T>(Executor& executor) -> void* {
                     const Reachable acc(call.acc);
                     CommitWholeCall here = call;
                     here.acc = acc.view();
                     gtopk::cuda::commit_whole<T>(executor, here);
                     return here.acc.pieces->tensor;
                   });
}

std::size_t sketch_workspace_bytes(DataType values, std::uint64_t columns, std::uint64_t d,
                                   std::uint64_t most) {
  return values == DataType::kFloat64
             ? gtopk::cuda::sketch_workspace_bytes<double>(columns, d, most)
             : gtopk::cuda::sketch_workspace_bytes<float>(columns, d, most);
}

int sketch(const SketchCall& call, void* stream) {
  return on_stream("sketch", stream, call.acc.dtype, [call]<class T>(Executor& executor) -> void* {
    const Reachable acc(call.acc);
    SketchCall here = call;
    here.acc = acc.view();
    here.workspace = reachable(call.workspace);
    gtopk::cuda::sketch<T>(executor, here);
    return here.cells;
  });
}

int find(const FindCall& call, void* stream) {
  return on_stream("find", stream, call.values, [call]<class T>(Executor& executor) -> void* {
    FindCall here = call;
    here.workspace = reachable(call.workspace);
    gtopk::cuda::find<gtopk::Accumulation<T>>(executor, here);
    return here.heaviest.indices;
  });
}

template <class T>
int load_of_type() {
  Loader loader;
  const std::size_t before = loaded().size();
  gtopk::cuda::launch_all_of_type<T>(loader);
  gtopk::cuda::launch_all_of_values<gtopk::Accumulation<T>>(loader);
  fake::count("loaded", static_cast<std::int64_t>(loaded().size() - before));
  return 0;
}

int load(DataType dtype) {
  if (fake::fails("load")) {
    return 209;  // cudaErrorNoKernelImageForDevice
  }
  switch (dtype) {
    case DataType::kFloat32:
      return load_of_type<float>();
    case DataType::kFloat64:
      return load_of_type<double>();
    case DataType::kBfloat16:
      return load_of_type<gtopk::Bfloat16>();
    default:
      return load_of_type<gtopk::Float16>();
  }
}

const char* error_name(int) { return "an error of a fake's"; }

}  // namespace

extern "C" const gtopk::cuda::Calls* gtopk_cuda_calls() {
  static constexpr gtopk::cuda::Calls kCalls{gtopk::cuda::Calls::kVersion,
                                             number_tiles,
                                             select_workspace_bytes,
                                             select,
                                             commit,
                                             accumulate,
                                             error_name,
                                             gather,
                                             commit_whole,
                                             sketch_workspace_bytes,
                                             sketch,
                                             find,
                                             load,
                                             launched};
  return &kCalls;
}
