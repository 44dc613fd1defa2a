// Torch backend: the Python module gtopk._C. The Python package around it is in gtopk/.
#include <pybind11/chrono.h>

#include "torch_backend/backend.hpp"

#include <mutex>
#include <vector>

#include "gtopk_version.hpp"
#include "torch_backend/forks.hpp"
#include "torch_backend/work.hpp"

namespace gtopk::torch_backend {
namespace {

namespace py = pybind11;

/// Backends that are alive, so that the process can leave its groups at exit though nobody
/// destroyed them. Guarded by process_mutex().
std::vector<c10::weak_intrusive_ptr<GtopkBackend>>& living() {
  static std::vector<c10::weak_intrusive_ptr<GtopkBackend>> backends;
  return backends;
}

c10::intrusive_ptr<GtopkBackend> create_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                int rank, int size,
                                                std::chrono::milliseconds timeout,
                                                const std::string& group_name) {
  auto backend = c10::make_intrusive<GtopkBackend>(store, rank, size, timeout, group_name);
  const std::lock_guard lock(process_mutex());
  std::erase_if(living(), [](const auto& weak) { return weak.expired(); });
  living().emplace_back(backend);
  return backend;
}

/// Leaves every group. In a forked child the parent's are left alone.
void shut_down() {
  std::vector<c10::weak_intrusive_ptr<GtopkBackend>> backends;
  {
    const std::lock_guard lock(process_mutex());
    backends.swap(living());
  }
  for (const auto& weak : backends) {
    if (const auto backend = weak.lock()) backend->shutdown();
  }
}

py::dict statistics(GtopkBackend& backend) {
  const Statistics s = backend.statistics();
  py::dict result;
  result["operations"] = s.operations;
  result["messages_sent"] = s.messages_sent;
  result["messages_received"] = s.messages_received;
  result["bytes_sent"] = s.bytes_sent;
  result["bytes_received"] = s.bytes_received;
  result["notices_sent"] = s.notices_sent;
  result["most_in_flight"] = s.most_in_flight;
  result["compress_seconds"] = s.compress_seconds;
  result["exchange_seconds"] = s.exchange_seconds;
  result["commit_seconds"] = s.commit_seconds;
  result["transport"] = backend.transport();
  return result;
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.doc() = "gtopk: the c10d backend (native part)";
  py::module_::import("torch.distributed");  // registers the base class
  module.attr("torch_version") = TORCH_VERSION;

  py::class_<GtopkBackend, c10d::Backend, c10::intrusive_ptr<GtopkBackend>>(module, "GtopkBackend")
      .def("sparse_all_reduce", &GtopkBackend::sparse_all_reduce, py::arg("tensor"),
           py::arg("residual"), py::arg("k"), py::arg("algorithm"), py::arg("select"),
           py::arg("put_back"), py::arg("op"), py::arg("timeout") = py::none(),
           py::call_guard<py::gil_scoped_release>())
      .def("get_error", &GtopkBackend::getError, py::call_guard<py::gil_scoped_release>())
      .def("statistics", &statistics)
      .def("_shutdown", &GtopkBackend::shutdown);

  py::class_<GtopkWork, c10d::Work, c10::intrusive_ptr<GtopkWork>>(module, "GtopkWork")
      .def("_get_sequence_number", &GtopkWork::getSequencenumber);

  module.def("create_backend", &create_backend, py::arg("store"), py::arg("rank"), py::arg("size"),
             py::arg("timeout"), py::arg("group_name"), py::call_guard<py::gil_scoped_release>());
  module.def("shutdown", &shut_down, py::call_guard<py::gil_scoped_release>());
  module.def("selection_size", &selection_size, py::arg("d"), py::arg("density"));
}

}  // namespace gtopk::torch_backend
