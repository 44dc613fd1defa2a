#include "src/transport/bootstrap/pmix_library.hpp"

#include <dlfcn.h>

#include <cstdlib>

#include <fmt/format.h>

#include "gtopk/error.hpp"

namespace gtopk::bootstrap::pmix {
namespace {

constexpr const char* kVariable = "GTOPK_PMIX_LIBRARY";
constexpr const char* kDefault = "libpmix.so.2";

Error no_library(const char* name) {
  const char* const why = dlerror();
  return {ErrorKind::kBootstrap,
          fmt::format("{} cannot be used: {}. Install OpenPMIx 4 or 5 (Debian: libpmix2), or name "
                      "its library in {}",
                      name, why != nullptr ? why : "unknown error", kVariable)};
}

template <class Function>
void find(void* library, const char* name, const char* symbol, Function& into) {
  void* const address = dlsym(library, symbol);
  if (address == nullptr) {
    throw no_library(name);
  }
  into = reinterpret_cast<Function>(address);
}

}  // namespace

Library load() {
  const char* const named = std::getenv(kVariable);
  const char* const name = named != nullptr && *named != '\0' ? named : kDefault;
  // The library's symbols stay private. It is never unloaded, because its threads may outlive the
  // caller.
  void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    throw no_library(name);
  }
  Library functions{};
  find(library, name, "PMIx_Init", functions.init);
  find(library, name, "PMIx_Finalize", functions.finalize);
  find(library, name, "PMIx_Put", functions.put);
  find(library, name, "PMIx_Commit", functions.commit);
  find(library, name, "PMIx_Get_nb", functions.get_nb);
  find(library, name, "PMIx_Error_string", functions.error_string);
  find(library, name, "PMIx_Get_version", functions.get_version);
  return functions;
}

}  // namespace gtopk::bootstrap::pmix
