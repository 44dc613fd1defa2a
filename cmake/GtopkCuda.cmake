# The kernels for GPUs, as a library that nothing here links: it is loaded when the first tensor on
# a GPU turns up. Sets GTOPK_NVCC and GTOPK_CUDART, empty where they are not built, and
# GTOPK_CUDA_MISSING, why not.
#
# The compiler is the toolkit that CUDAToolkit_ROOT or CUDACXX names; else that among the wheels of
# Python, which requirements/core.txt pins; else one in PATH. So whoever names none builds the same
# kernels everywhere.
#
# nvcc is called by commands of our own and not as a language of CMake's: that would try it out at
# each configuration, and hand it the flags that are g++'s. And not through ccache, which would miss
# a change to what only one architecture sees.
set(GTOPK_NVCC "")
set(GTOPK_CUDART "")
set(GTOPK_CUDA_MISSING "")

# gtopk_nvcc_of_python(): of the packages nvidia-cuda-nvcc and nvidia-cuda-runtime, whose layout
# find_package(CUDAToolkit) does not know.
function(gtopk_nvcc_of_python)
  gtopk_wheel_dirs(nvidia.cu13 folders)
  foreach(folder IN LISTS folders)
    if(NOT GTOPK_NVCC AND EXISTS "${folder}/bin/nvcc")
      set(GTOPK_NVCC "${folder}/bin/nvcc")
    endif()
    if(NOT GTOPK_CUDART AND EXISTS "${folder}/lib/libcudart_static.a")
      set(GTOPK_CUDART "${folder}/lib/libcudart_static.a")
    endif()
  endforeach()
  if(GTOPK_NVCC AND GTOPK_CUDART)
    set(GTOPK_NVCC "${GTOPK_NVCC}" PARENT_SCOPE)
    set(GTOPK_CUDART "${GTOPK_CUDART}" PARENT_SCOPE)
  endif()
endfunction()

function(gtopk_nvcc_of_toolkit)
  if(NOT CUDAToolkit_ROOT AND DEFINED ENV{CUDACXX})
    file(REAL_PATH "$ENV{CUDACXX}" compiler)
    cmake_path(GET compiler PARENT_PATH CUDAToolkit_ROOT)
    cmake_path(GET CUDAToolkit_ROOT PARENT_PATH CUDAToolkit_ROOT)
  endif()
  find_package(CUDAToolkit 12.8 QUIET)  # the first that knows sm_120
  if(CUDAToolkit_FOUND AND CUDAToolkit_NVCC_EXECUTABLE AND TARGET CUDA::cudart_static)
    set(GTOPK_NVCC "${CUDAToolkit_NVCC_EXECUTABLE}" PARENT_SCOPE)
    get_target_property(library CUDA::cudart_static IMPORTED_LOCATION)
    set(GTOPK_CUDART "${library}" PARENT_SCOPE)
  endif()
endfunction()

if(NOT GTOPK_CUDA MATCHES "^(ON|OFF|AUTO)$")
  message(FATAL_ERROR "GTOPK_CUDA is '${GTOPK_CUDA}': expected ON, OFF or AUTO")
endif()
if(GTOPK_CUDA STREQUAL "OFF")
  set(GTOPK_CUDA_MISSING "GTOPK_CUDA is OFF")
else()
  if(NOT CUDAToolkit_ROOT AND NOT DEFINED ENV{CUDAToolkit_ROOT} AND NOT DEFINED ENV{CUDACXX})
    gtopk_nvcc_of_python()
  endif()
  if(NOT GTOPK_NVCC)
    gtopk_nvcc_of_toolkit()
  endif()
  if(GTOPK_NVCC)
    message(STATUS "Kernels for GPUs: ${GTOPK_NVCC}")
  else()
    set(GTOPK_CUDA_MISSING "there is no CUDA toolkit of 12.8 or newer with nvcc and cudart_static")
    if(GTOPK_CUDA STREQUAL "ON")
      message(FATAL_ERROR "GTOPK_CUDA=ON: ${GTOPK_CUDA_MISSING}. Run tools/setup, or pip install "
                          "\"nvidia-cuda-nvcc==13.0.*\" \"nvidia-nvvm==13.0.*\" "
                          "\"nvidia-cuda-crt==13.0.*\" \"nvidia-cuda-runtime==13.0.*\", or say "
                          "where a toolkit is by CUDAToolkit_ROOT")
    endif()
    message(STATUS "No kernels for GPUs: ${GTOPK_CUDA_MISSING}")
  endif()
endif()

# Machine code for sm_80, 90, 100 and 120, and PTX of the last for what comes later. The first three
# are translated from one PTX, as no kernel uses what came after sm_80: a sixth less to compile.
# Registers are those that PTX of their own would need; on sm_120 that would spill more.
set(GTOPK_CUDA_CODE "-gencode=arch=compute_80,code=[sm_80,sm_90,sm_100]"
                    "-gencode=arch=compute_120,code=[sm_120,compute_120]")

# gtopk_cuda_object(<list> <source> <name> [<flag>...]): compiles a source; the object, of that name,
# is added to the list. Results are those of the CPU to the bit: no fused multiply-add, denormals
# kept, divisions rounded. What ptxas says of each kernel is left in <name>.ptxas, which a test reads.
function(gtopk_cuda_object list source name)
  set(flags -std=c++20 -O3 -fmad=false -ftz=false -prec-div=true -prec-sqrt=true
            --expt-relaxed-constexpr --compress-mode=size -Xptxas=-v -Wno-deprecated-gpu-targets
            "-Xcompiler=-fPIC,-fvisibility=hidden,-ffp-contract=off,-Wall" -ccbin
            "${CMAKE_CXX_COMPILER}" ${GTOPK_CUDA_CODE})
  if(GTOPK_WERROR)
    list(APPEND flags -Werror=all-warnings)
  endif()
  set(object "${CMAKE_CURRENT_BINARY_DIR}/${name}.o")
  set(report "${CMAKE_CURRENT_BINARY_DIR}/${name}.ptxas")
  add_custom_command(
    OUTPUT "${object}"
    BYPRODUCTS "${report}"
    COMMAND "${CMAKE_COMMAND}" "-DREPORT=${report}" -P "${PROJECT_SOURCE_DIR}/cmake/RunNvcc.cmake"
            -- "${GTOPK_NVCC}" ${flags} ${ARGN} "-I${PROJECT_SOURCE_DIR}"
            "-I${PROJECT_SOURCE_DIR}/include" -MD -MF "${object}.d" -MT "${object}" -c
            "${CMAKE_CURRENT_SOURCE_DIR}/${source}" -o "${object}"
    DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/${source}" "${PROJECT_SOURCE_DIR}/cmake/RunNvcc.cmake"
    DEPFILE "${object}.d"
    COMMENT "nvcc ${name}"
    VERBATIM)
  list(APPEND ${list} "${object}")
  set(${list} "${${list}}" PARENT_SCOPE)
endfunction()
