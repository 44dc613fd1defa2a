#include "src/torch_backend/device_driver.hpp"

#include "gtopk/error.hpp"
#include "src/torch_backend/errors.hpp"
#include "src/torch_backend/torch_headers.hpp"

namespace gtopk::torch_backend {

void rethrow_failures(const std::function<void()>& call) {
  try {
    call();
  } catch (const gpu::Failure& failure) {
    C10_THROW_ERROR(DistBackendError, c10::str("gtopk: ", failure.what()));
  }
}

gpu::SelfTest self_test_of_environment() {
  try {
    return gpu::self_test_of_environment();
  } catch (const Error& error) {
    rethrow_for_python(error);
  }
}

const gpu::Driver& device_driver() {
  const gpu::Driver* driver = nullptr;
  rethrow_failures([&] { driver = &gpu::Driver::get(); });
  return *driver;
}

}  // namespace gtopk::torch_backend
