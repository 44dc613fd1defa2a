// Torch backend: the functions that Python calls, as operators torch.ops.gtopk.*. A pybind11 class
// would also need one library per Python version. The Python package around them is in gtopk/.
//
// Operators identify a backend by its number: torch gives Python its own c10d.Backend, which has
// none of gtopk's methods and may be a wrapper (TORCH_DISTRIBUTED_DEBUG=DETAIL).
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gtopk/collectives.hpp"
#include "gtopk/gate.hpp"
#include "gtopk/process_statistics.hpp"
#include "src/torch_backend/backend.hpp"
#include "src/torch_backend/completer.hpp"
#include "src/torch_backend/errors.hpp"
#include "src/torch_backend/forks.hpp"
#include "src/torch_backend/sparse_options.hpp"
#include "src/torch_backend/torch_headers.hpp"
#include "src/torch_backend/work.hpp"

namespace gtopk::torch_backend {
namespace {

using GroupPointer = c10::intrusive_ptr<c10d::ProcessGroup>;
using BackendPointer = c10::intrusive_ptr<GtopkBackend>;

std::string torch_version() { return TORCH_VERSION; }

/// Meets the other ranks of `group`, unless it is `reconfigurable`, and installs a backend for CPU
/// tensors. Returns its number.
std::int64_t create_backend(const GroupPointer& group, std::int64_t timeout_ms,
                            const std::string& name, bool reconfigurable) {
  auto backend = GtopkBackend::make({.store = group->getStore(),
                                     .rank = group->getRank(),
                                     .size = group->getSize(),
                                     .timeout = std::chrono::milliseconds(timeout_ms),
                                     .group_name = name,
                                     .reconfigurable = reconfigurable});
  const std::int64_t number = backend->number();
  group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM,
                    c10::intrusive_ptr<c10d::Backend>(std::move(backend)));
  return number;
}

/// Returns the number of the group's backend for CPU tensors, if it is a gtopk backend.
std::optional<std::int64_t> number_of(const GroupPointer& group) {
  const c10::intrusive_ptr<c10d::Backend> backend = group->getBackend(c10::DeviceType::CPU);
  const auto* const ours = dynamic_cast<const GtopkBackend*>(backend.get());
  return ours != nullptr ? std::optional(ours->number()) : std::nullopt;
}

/// The class torch.classes.gtopk.Gate.
struct TorchGate : torch::CustomClassHolder {
  explicit TorchGate(std::int64_t arrivals) {
    TORCH_CHECK_VALUE(arrivals >= 1 && arrivals <= std::numeric_limits<std::uint32_t>::max(),
                      "gtopk: a gate needs at least one arrival, got ", arrivals);
    gate = std::make_shared<Gate>(static_cast<std::uint32_t>(arrivals));
  }
  std::shared_ptr<Gate> gate;
};
using GatePointer = c10::intrusive_ptr<TorchGate>;

using OptionsPointer = c10::intrusive_ptr<TorchOptions>;

c10::intrusive_ptr<c10d::Work> sparse_all_reduce(
    std::int64_t backend, const OptionsPointer& options, const std::vector<at::Tensor>& tensors,
    const std::optional<at::Tensor>& residual, std::optional<std::int64_t> timeout_ms,
    const std::vector<at::Tensor>& delivered, const std::optional<at::Tensor>& state, double scale,
    const std::optional<GatePointer>& gate, const std::optional<at::Tensor>& momentum) {
  std::optional<std::chrono::milliseconds> timeout;
  if (timeout_ms) {
    timeout.emplace(*timeout_ms);
  }
  SparseOptions of_call = options->value();
  of_call.scale = scale;
  if (gate) {
    of_call.gate = (*gate)->gate;
  }
  return GtopkBackend::numbered(backend)->sparse_all_reduce(tensors, residual, std::move(of_call),
                                                            timeout, delivered, state, momentum);
}

using Counts = c10::Dict<std::string, std::int64_t>;
using Seconds = c10::Dict<std::string, double>;

/// Describes the transport of the living groups; empty if there are none.
std::string transport_here() {
  for (const BackendPointer& backend : GtopkBackend::living()) {
    try {
      return backend->transport();
    } catch (const c10::Error&) {
      continue;  // it has left its group
    }
  }
  return {};
}

/// Returns the statistics of a backend, or of the whole process. They have no figures if the
/// process has been in no group.
std::tuple<Counts, Seconds, std::string> statistics(std::optional<std::int64_t> number) {
  Counts counts;
  Seconds seconds;
  const BackendPointer backend = number ? GtopkBackend::numbered(*number) : BackendPointer();
  const std::optional<Statistics> found = backend ? backend->statistics() : process_statistics();
  if (!found) {
    return {std::move(counts), std::move(seconds), ""};
  }
  for (const MetricInfo& metric : kMetrics) {
    const std::string name(metric.name);
    if (metric.count != nullptr) {
      counts.insert(name, static_cast<std::int64_t>((*found).*metric.count));
    } else {
      seconds.insert(name, (*found).*metric.seconds);
    }
  }
  return {std::move(counts), std::move(seconds), backend ? backend->transport() : transport_here()};
}

/// The fields are the algorithm ("" if there is no plan) and the reason; seconds, messages, bytes
/// and bytes of a host by algorithm; costs by name, in nanoseconds; the collective that measured
/// them; and the call's duration.
using Plan = std::tuple<std::string, std::string, Seconds, Counts, Seconds, Seconds, Seconds,
                        std::int64_t, double>;

Plan told(const PlanReport& report) {
  Seconds seconds;
  Counts messages;
  Seconds bytes;
  Seconds host_bytes;
  for (const Prediction& prediction : report.predictions) {
    seconds.insert(prediction.algorithm, prediction.seconds);
    messages.insert(prediction.algorithm, static_cast<std::int64_t>(prediction.messages));
    bytes.insert(prediction.algorithm, prediction.bytes);
    host_bytes.insert(prediction.algorithm, prediction.host_bytes);
  }
  Seconds costs;
  costs.insert("message_within", report.costs.within.message);
  costs.insert("byte_within", report.costs.within.byte);
  costs.insert("message_between", report.costs.between.message);
  costs.insert("byte_between", report.costs.between.byte);
  for (const NamedCost& each : kArithmeticCosts) {
    costs.insert(each.name, report.costs.*each.cost);
  }
  return {report.algorithm,     report.reason,
          std::move(seconds),   std::move(messages),
          std::move(bytes),     std::move(host_bytes),
          std::move(costs),     static_cast<std::int64_t>(report.measured_by),
          report.actual_seconds};
}

Plan plan(std::int64_t backend, const OptionsPointer& options, std::int64_t d,
          const at::Tensor& like, bool anew) {
  TORCH_CHECK_VALUE(d >= 0, "gtopk: d must not be negative, given ", d);
  return told(GtopkBackend::numbered(backend)->plan(static_cast<std::uint64_t>(d), like,
                                                    options->value(), anew));
}

Plan last_plan(std::int64_t backend) {
  return told(GtopkBackend::numbered(backend)->last_plan().value_or(PlanReport()));
}

/// Returns the flight record of the whole process; empty if it is in no group.
std::string flight_record() {
  std::vector<BackendPointer> backends = GtopkBackend::living();
  for (const BackendPointer& backend : backends) {
    try {
      return backend->flight_record();
    } catch (const c10::DistBackendError&) {  // it has left its group
      continue;
    }
  }
  return {};
}

std::int64_t get_error(std::int64_t backend) {
  return static_cast<std::int64_t>(GtopkBackend::numbered(backend)->getError());
}

void set_timeout(std::int64_t backend, std::int64_t timeout_ms) {
  GtopkBackend::numbered(backend)->setTimeout(std::chrono::milliseconds(timeout_ms));
}

std::int64_t sequence_number(const c10::intrusive_ptr<c10d::Work>& work) {
  return static_cast<std::int64_t>(work->getSequencenumber());
}

/// Takes the Work's callbacks out of the group's order of calls.
void leave_order(const c10::intrusive_ptr<c10d::Work>& work) {
  if (auto* const ours = dynamic_cast<GtopkWork*>(work.get())) {
    ours->leave_order();
  }
}

/// Makes an exception of the Python class with that name; it is RuntimeError for all but a few.
std::exception_ptr exception_of(const std::string& type, const std::string& text) {
  try {
    if (type == "DistBackendError") {
      C10_THROW_ERROR(DistBackendError, text);
    }
    TORCH_CHECK_VALUE(type != "ValueError", text);
    TORCH_CHECK_NOT_IMPLEMENTED(type != "NotImplementedError", text);
    TORCH_CHECK(false, text);
  } catch (...) {
    return std::current_exception();
  }
}

/// Implements fail(Future future, str type, str text): completes a future with an exception that
/// C++ also sees. An exception that Python sets is a value in C++, and one that a callback raises
/// is a RuntimeError with a traceback in its text.
void fail(const c10::OperatorHandle& /*schema*/, torch::jit::Stack* stack) {
  const std::string text = torch::jit::pop(*stack).toStringRef();
  const std::string type = torch::jit::pop(*stack).toStringRef();
  const c10::intrusive_ptr<c10::ivalue::Future> future = torch::jit::pop(*stack).toFuture();
  future->setError(exception_of(type, text));
}

/// Leaves every group, so that the process can exit even if they were not destroyed. A forked child
/// does not leave its parent's groups. `last_words` is the reason, for the errors of other ranks;
/// it may be empty.
void shut_down(const std::string& last_words) {
  std::vector<BackendPointer> backends = GtopkBackend::living();
  for (const BackendPointer& backend : backends) {
    if (!last_words.empty()) {
      backend->set_last_words(last_words);
    }
  }
  for (const BackendPointer& backend : backends) {
    backend->shutdown();
  }
  backends.clear();
  Completer::wait_for_stragglers();
}

/// Returns names with their descriptions, in order.
c10::Dict<std::string, std::string> described(const std::vector<Choice>& choices) {
  c10::Dict<std::string, std::string> described;
  for (const Choice& choice : choices) {
    described.insert(std::string(choice.name), std::string(choice.description));
  }
  return described;
}

TORCH_LIBRARY(gtopk, library) {
  library.def("torch_version() -> str", &torch_version);
  library.class_<TorchGate>("Gate")
      .def(torch::init<std::int64_t>())
      .def("arrive", [](const GatePointer& self, bool happened) { self->gate->arrive(happened); })
      .def("shut", [](const GatePointer& self) { return self->gate->shut(); });
  library.def(
      "create_backend(__torch__.torch.classes.c10d.ProcessGroup group, int timeout_ms, str name, "
      "bool reconfigurable) -> int",
      &create_backend);
  library.def("number_of(__torch__.torch.classes.c10d.ProcessGroup group) -> int?", &number_of);
  library.class_<TorchOptions>("SparseOptions")
      .def(torch::init([](std::optional<std::int64_t> k, std::optional<double> density,
                          std::string algorithm, std::string select, std::int64_t block,
                          std::string put_back, std::optional<std::string> wire,
                          std::string semantics, std::int64_t op, std::string mean) {
        return c10::make_intrusive<TorchOptions>(NamedOptions{
            k, density, std::move(algorithm), std::move(select), block, std::move(put_back),
            std::move(wire), std::move(semantics), op, std::move(mean)});
      }))
      .def("traits", &TorchOptions::traits)
      .def("most_delivered", &TorchOptions::most_delivered);
  library.def(
      "sparse_all_reduce(int backend, __torch__.torch.classes.gtopk.SparseOptions options, "
      "Tensor(a!)[] tensors, Tensor(b!)? residual, int? timeout_ms, Tensor(c!)[] delivered, "
      "Tensor(d!)? state, float scale, __torch__.torch.classes.gtopk.Gate? gate, "
      "Tensor(e!)? momentum) -> __torch__.torch.classes.c10d.Work",
      &sparse_all_reduce);
  library.def("statistics(int? backend) -> (Dict(str, int), Dict(str, float), str)", &statistics);
  library.def(
      "plan(int backend, __torch__.torch.classes.gtopk.SparseOptions options, int d, Tensor like, "
      "bool anew) "
      "-> (str, str, Dict(str, float), Dict(str, int), Dict(str, float), Dict(str, float), "
      "Dict(str, float), int, float)",
      &plan);
  library.def(
      "last_plan(int backend) "
      "-> (str, str, Dict(str, float), Dict(str, int), Dict(str, float), Dict(str, float), "
      "Dict(str, float), int, float)",
      &last_plan);
  library.def("flight_record() -> str", &flight_record);
  library.def("get_error(int backend) -> int", &get_error);
  library.def("set_timeout(int backend, int timeout_ms) -> ()", &set_timeout);
  library.def("sequence_number(__torch__.torch.classes.c10d.Work work) -> int", &sequence_number);
  library.def("leave_order(__torch__.torch.classes.c10d.Work work) -> ()", &leave_order);
  library.def("fail(Future(Any) future, str type, str text) -> ()",
              torch::CppFunction::makeFromBoxedFunction<&fail>());
  library.def("shutdown(str last_words) -> ()", &shut_down);
  library.def("algorithms() -> Dict(str, str)", +[] { return described(algorithms()); });
  library.def(
      "selecting_algorithms() -> Dict(str, str)",
      +[] { return described(selecting_algorithms()); });
  library.def(
      "predicted_algorithms() -> Dict(str, str)",
      +[] { return described(predicted_algorithms()); });
  library.def("selectors() -> Dict(str, str)", +[] { return described(selectors()); });
  library.def("wires() -> Dict(str, str)", +[] { return described(wires()); });
}

}  // namespace
}  // namespace gtopk::torch_backend
