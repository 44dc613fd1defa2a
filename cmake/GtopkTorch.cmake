# LibTorch out of the installed torch wheel, and the Python module that is built with it.
# find_package(Torch) is not used: it wants nvcc for a CUDA build of torch, and this module has no
# CUDA of its own. Target gtopk::torch carries headers (pybind11's among them: the module must
# share torch's pybind11 internals) and libraries.
gtopk_wheel_dir(torch GTOPK_TORCH_DIR)
if(NOT GTOPK_TORCH_DIR)
  message(FATAL_ERROR "No torch wheel for ${Python_EXECUTABLE}: run tools/setup, or pip install "
                      "torch, or configure with -DGTOPK_TORCH=OFF")
endif()
file(STRINGS "${GTOPK_TORCH_DIR}/version.py" torch_version REGEX "^__version__ = ")
string(REGEX REPLACE ".*'([^']+)'.*" "\\1" torch_version "${torch_version}")
message(STATUS "torch ${torch_version} at ${GTOPK_TORCH_DIR}")

# The wheel says which libstdc++ ABI it was built with; a module with the other one cannot load.
file(STRINGS "${GTOPK_TORCH_DIR}/share/cmake/Torch/TorchConfig.cmake" torch_abi
     REGEX "_GLIBCXX_USE_CXX11_ABI=")
if(torch_abi MATCHES "_GLIBCXX_USE_CXX11_ABI=([01])")
  set(torch_abi "_GLIBCXX_USE_CXX11_ABI=${CMAKE_MATCH_1}")
else()
  set(torch_abi "_GLIBCXX_USE_CXX11_ABI=1")
endif()

add_library(gtopk_torch INTERFACE)
add_library(gtopk::torch ALIAS gtopk_torch)
target_include_directories(gtopk_torch SYSTEM INTERFACE
                           "${GTOPK_TORCH_DIR}/include"
                           "${GTOPK_TORCH_DIR}/include/torch/csrc/api/include")
target_compile_definitions(gtopk_torch INTERFACE "${torch_abi}")
foreach(library IN ITEMS c10 torch_cpu torch torch_python)
  add_library(gtopk_torch_${library} SHARED IMPORTED)
  set_target_properties(gtopk_torch_${library} PROPERTIES IMPORTED_LOCATION
                        "${GTOPK_TORCH_DIR}/lib/lib${library}.so")
  target_link_libraries(gtopk_torch INTERFACE gtopk_torch_${library})
endforeach()

# gtopk_torch_module(<name> SOURCES <files>): a Python extension module of the package gtopk, with
# the core and torch. Installed into the package beside the libraries that no other wheel brings;
# torch and libucx are in the process already when Python loads the module.
function(gtopk_torch_module name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES")
  Python_add_library(${name} MODULE WITH_SOABI ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE gtopk::core gtopk::torch)
  target_compile_definitions(${name} PRIVATE "TORCH_EXTENSION_NAME=${name}")
  set_target_properties(${name} PROPERTIES INSTALL_RPATH "$ORIGIN")
  install(TARGETS ${name} LIBRARY DESTINATION gtopk COMPONENT python)
  if(NOT TARGET gtopk_python)
    add_custom_target(gtopk_python)
  endif()
  add_dependencies(gtopk_python ${name})
endfunction()

# gtopk_bundle(<targets>): their shared libraries into the package, by SONAME, as the module asks
# for them. An archive needs no bundling.
function(gtopk_bundle)
  foreach(target IN LISTS ARGN)
    get_target_property(configurations ${target} IMPORTED_CONFIGURATIONS)
    list(GET configurations 0 configuration)
    get_target_property(location ${target} IMPORTED_LOCATION_${configuration})
    get_target_property(soname ${target} IMPORTED_SONAME_${configuration})
    if(location MATCHES "\\.so" AND soname)
      file(REAL_PATH "${location}" location)
      install(PROGRAMS "${location}" DESTINATION gtopk RENAME "${soname}" COMPONENT python)
    elseif(location MATCHES "\\.so")
      message(FATAL_ERROR "${target} is ${location}, but its package tells no SONAME")
    endif()
  endforeach()
endfunction()
gtopk_bundle(fmt::fmt spdlog::spdlog hwy::hwy)
