# Finds the libraries of the core. UCX comes from the libucx-cu13 wheel or from the system
# (GTOPK_UCX); either way the targets are ucx::ucp and ucx::ucs. It knows no torch.
# fmt as a compiled library: header-only it takes two thirds of every compilation. spdlog, which one
# file includes, header-only: Debian's library needs a newer libstdc++ than we do.
find_package(Threads REQUIRED)
find_package(fmt 9 REQUIRED)
find_package(spdlog 1.10 REQUIRED)
find_package(hwy CONFIG REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
if(GTOPK_PROGRAMS OR GTOPK_BENCH)
  find_package(CLI11 2.1 REQUIRED)
endif()

# Its headers alone: the library is loaded at run time (src/transport/topology).
find_path(GTOPK_HWLOC_INCLUDE hwloc.h REQUIRED)

# As an archive where there is one: what is built then needs no libsodium to run.
find_path(GTOPK_SODIUM_INCLUDE sodium.h REQUIRED)
find_library(GTOPK_SODIUM NAMES libsodium.a sodium REQUIRED)

if(NOT TARGET hwy::hwy)
  message(FATAL_ERROR "Highway was found in ${hwy_DIR}, but it defines no target hwy::hwy")
endif()

if(GTOPK_UCX STREQUAL "wheel")
  gtopk_wheel_dir(libucx GTOPK_LIBUCX_DIR)
  if(NOT GTOPK_LIBUCX_DIR)
    message(FATAL_ERROR "No libucx wheel for ${Python_EXECUTABLE}: run tools/setup, or "
                        "pip install libucx-cu13, or build against the system's UCX with "
                        "-DGTOPK_UCX=system")
  endif()
  find_package(ucx CONFIG REQUIRED PATHS "${GTOPK_LIBUCX_DIR}/lib/cmake/ucx" NO_DEFAULT_PATH)
elseif(GTOPK_UCX STREQUAL "system")
  # Distributions ship pkg-config's file and not always the CMake package. Below 1.17 nothing was
  # tried; Debian 12's 1.13 cannot say which transports an endpoint uses (ucp.h has no
  # UCP_EP_ATTR_FIELD_TRANSPORTS).
  find_package(PkgConfig REQUIRED)
  pkg_check_modules(SYSTEM_UCX QUIET IMPORTED_TARGET ucx)
  if(NOT SYSTEM_UCX_FOUND)
    message(FATAL_ERROR "GTOPK_UCX=system: pkg-config finds no ucx. Install UCX 1.17 or newer with "
                        "its headers, or say where its ucx.pc is by PKG_CONFIG_PATH")
  elseif(SYSTEM_UCX_VERSION VERSION_LESS 1.17)
    message(FATAL_ERROR "GTOPK_UCX=system: UCX ${SYSTEM_UCX_VERSION} is too old, 1.17 or newer is "
                        "needed. Build one (docs/ucx.md) and say where its ucx.pc is by "
                        "PKG_CONFIG_PATH, or build with -DGTOPK_UCX=wheel")
  endif()
  add_library(ucx::ucp ALIAS PkgConfig::SYSTEM_UCX)
  add_library(ucx::ucs ALIAS PkgConfig::SYSTEM_UCX)
else()
  message(FATAL_ERROR "GTOPK_UCX is '${GTOPK_UCX}': expected wheel or system")
endif()
