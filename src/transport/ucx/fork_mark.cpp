#include "src/transport/ucx/fork_mark.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

namespace gtopk::transport {

ForkMark::ForkMark() : made_by_(getpid()), bytes_(static_cast<std::size_t>(sysconf(_SC_PAGESIZE))) {
  void* const page =
      mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) {
    return;
  }
  if (madvise(page, bytes_, MADV_WIPEONFORK) != 0) {
    munmap(page, bytes_);
    return;
  }
  page_ = page;
  *static_cast<volatile std::uint8_t*>(page_) = 1;
}

ForkMark::~ForkMark() {
  if (page_ != nullptr) {
    munmap(page_, bytes_);
  }
}

bool ForkMark::made_here() const {
  return page_ != nullptr ? *static_cast<const volatile std::uint8_t*>(page_) != 0
                          : getpid() == made_by_;
}

}  // namespace gtopk::transport
