#include "src/transport/ucx/descriptor_reserve.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <utility>

namespace gtopk::transport {

void DescriptorReserve::fill() {
  while (held_.size() < kSize) {
    const int descriptor = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) {
      return;
    }
    held_.push_back(descriptor);
  }
}

void DescriptorReserve::release() {
  for (const int descriptor : std::exchange(held_, {})) {
    close(descriptor);
  }
}

}  // namespace gtopk::transport
