# The kernels for GPUs, as a library that nothing here links: it is loaded when the first tensor on
# a GPU turns up. Sets GTOPK_NVCC, empty where they are not built, and GTOPK_CUDA_MISSING, why not.
#
# nvcc is called by commands of our own and not as a language of CMake's: that would try it out at
# each configuration, and hand it the flags that are g++'s.
set(GTOPK_NVCC "")
set(GTOPK_CUDA_MISSING "")
if(NOT GTOPK_CUDA MATCHES "^(ON|OFF|AUTO)$")
  message(FATAL_ERROR "GTOPK_CUDA is '${GTOPK_CUDA}': expected ON, OFF or AUTO")
endif()
if(GTOPK_CUDA STREQUAL "OFF")
  set(GTOPK_CUDA_MISSING "GTOPK_CUDA is OFF")
else()
  find_package(CUDAToolkit 12.8 QUIET)  # the first that knows sm_100
  if(CUDAToolkit_FOUND AND CUDAToolkit_NVCC_EXECUTABLE AND TARGET CUDA::cudart_static)
    set(GTOPK_NVCC "${CUDAToolkit_NVCC_EXECUTABLE}")
    message(STATUS "nvcc ${CUDAToolkit_VERSION}: ${GTOPK_NVCC}")
  else()
    set(GTOPK_CUDA_MISSING "there is no CUDA toolkit of 12.8 or newer with nvcc and cudart_static")
    if(GTOPK_CUDA STREQUAL "ON")
      message(FATAL_ERROR "GTOPK_CUDA=ON: ${GTOPK_CUDA_MISSING}; CUDAToolkit_ROOT says where it is")
    endif()
    message(STATUS "No kernels for GPUs: ${GTOPK_CUDA_MISSING}")
  endif()
endif()

# Code for each of these, and for what comes later as PTX of the last.
set(GTOPK_CUDA_ARCHITECTURES 80 90 100)

# gtopk_cuda_object(<list> <source> <name> [<flag>...]): compiles a source; the object, of that name,
# is added to the list. Results are those of the CPU to the bit: no fused multiply-add, denormals kept,
# divisions rounded.
function(gtopk_cuda_object list source name)
  set(flags -std=c++20 -O3 -fmad=false -ftz=false -prec-div=true -prec-sqrt=true
            --expt-relaxed-constexpr -Wno-deprecated-gpu-targets
            "-Xcompiler=-fPIC,-fvisibility=hidden,-ffp-contract=off,-Wall" -ccbin
            "${CMAKE_CXX_COMPILER}")
  foreach(architecture IN LISTS GTOPK_CUDA_ARCHITECTURES)
    list(APPEND flags "-gencode=arch=compute_${architecture},code=sm_${architecture}")
  endforeach()
  list(GET GTOPK_CUDA_ARCHITECTURES -1 latest)
  list(APPEND flags "-gencode=arch=compute_${latest},code=compute_${latest}")
  if(GTOPK_WERROR)
    list(APPEND flags -Werror=all-warnings)
  endif()
  set(object "${CMAKE_CURRENT_BINARY_DIR}/${name}.o")
  add_custom_command(
    OUTPUT "${object}"
    COMMAND "${GTOPK_NVCC}" ${flags} ${ARGN} "-I${PROJECT_SOURCE_DIR}"
            "-I${PROJECT_SOURCE_DIR}/include" -MD -MF "${object}.d" -MT "${object}" -c
            "${CMAKE_CURRENT_SOURCE_DIR}/${source}" -o "${object}"
    DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/${source}"
    DEPFILE "${object}.d"
    COMMENT "nvcc ${name}"
    VERBATIM)
  list(APPEND ${list} "${object}")
  set(${list} "${${list}}" PARENT_SCOPE)
endfunction()
