# A library of the backend for each minor version of torch: c10d's virtual tables differ. It knows
# torch's headers alone, and no Python: find_package(Torch) would want nvcc, and a library that is
# linked with empty stand-ins for torch's needs no wheel of 540 MB. What is not in torch after all
# shows when the library is loaded.
#
# GTOPK_TORCH_HEADERS names the include directories, one per minor version (tools/torch prints
# them); without it torch is looked for among the wheels of Python. pip hands options to CMake and
# not to what writes the wheel's metadata, so that the environment may name them as well.
set(GTOPK_TORCH_HEADERS "" CACHE STRING "Include directories of torch, one per minor version")
if(DEFINED ENV{GTOPK_TORCH_HEADERS})
  set_property(CACHE GTOPK_TORCH_HEADERS PROPERTY VALUE "$ENV{GTOPK_TORCH_HEADERS}")
endif()
set(GTOPK_TORCH_INCLUDES ${GTOPK_TORCH_HEADERS})
if(NOT GTOPK_TORCH_INCLUDES)
  gtopk_wheel_dir(torch torch_dir)
  if(NOT torch_dir)
    message(FATAL_ERROR "No torch wheel for ${Python_EXECUTABLE}: run tools/setup, or pip install "
                        "torch, or configure with -DGTOPK_TORCH=OFF")
  endif()
  set(GTOPK_TORCH_INCLUDES "${torch_dir}/include")
endif()

# Stand-ins with torch's SONAMEs: torch loads its libraries for itself alone, so that who wants
# their symbols must name them.
file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/torch/empty.cpp" CONTENT "")
foreach(library IN ITEMS c10 torch_cpu)
  add_library(gtopk_stand_in_${library} SHARED "${PROJECT_BINARY_DIR}/torch/empty.cpp")
  set_target_properties(gtopk_stand_in_${library} PROPERTIES OUTPUT_NAME ${library}
                        LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/torch")
endforeach()

# libgtopk_core.so: the core, once for the libraries of every torch and for the programs of the
# wheel, which would be two times as large with a core in each.
add_library(gtopk_shared SHARED "${PROJECT_BINARY_DIR}/torch/empty.cpp")
target_link_libraries(gtopk_shared PRIVATE $<LINK_LIBRARY:WHOLE_ARCHIVE,gtopk_core>
                      INTERFACE fmt::fmt hwy::hwy ucx::ucp ucx::ucs Threads::Threads)
target_include_directories(gtopk_shared INTERFACE
                           $<TARGET_PROPERTY:gtopk_core,INTERFACE_INCLUDE_DIRECTORIES>)
set(GTOPK_EXPORTED "${PROJECT_SOURCE_DIR}/cmake/gtopk_core.map")
target_link_options(gtopk_shared PRIVATE "LINKER:--version-script=${GTOPK_EXPORTED}"
                    "LINKER:-Bsymbolic,-z,defs,--gc-sections,--as-needed")
set_target_properties(gtopk_shared PROPERTIES OUTPUT_NAME gtopk_core LINK_DEPENDS "${GTOPK_EXPORTED}"
                      INSTALL_RPATH "$ORIGIN:$ORIGIN/../libucx/lib")
install(TARGETS gtopk_shared LIBRARY DESTINATION gtopk COMPONENT python)

# gtopk_torch_libraries(SOURCES <files>): _torch_2_11.so and so on, of the package gtopk. Installed
# beside the libraries that no other wheel brings; torch and libucx are in
# the process already when Python loads one. As one translation unit, since torch's headers take
# longer to compile than all sources.
function(gtopk_torch_libraries)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "SOURCES")
  add_custom_target(gtopk_python)
  foreach(include IN LISTS GTOPK_TORCH_INCLUDES)
    file(STRINGS "${include}/torch/headeronly/version.h" lines REGEX "_VERSION_M(AJ|IN)OR ")
    if(NOT lines MATCHES "MAJOR ([0-9]+).*MINOR ([0-9]+)")
      message(FATAL_ERROR "No version of torch in ${include}/torch/headeronly/version.h")
    endif()
    set(name "torch_${CMAKE_MATCH_1}_${CMAKE_MATCH_2}")
    message(STATUS "torch ${CMAKE_MATCH_1}.${CMAKE_MATCH_2}: ${include}")
    add_library(gtopk_${name} MODULE ${arg_SOURCES})
    target_include_directories(gtopk_${name} SYSTEM PRIVATE "${include}")
    # torch's errors tell the file: by its name in the project or in torch, not on this machine.
    target_compile_options(gtopk_${name} PRIVATE "-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/="
                                                 "-fmacro-prefix-map=${include}/=")
    gtopk_old_symbols(gtopk_${name})
    target_link_libraries(gtopk_${name} PRIVATE gtopk_shared -Wl,--no-as-needed
                          gtopk_stand_in_torch_cpu gtopk_stand_in_c10)
    set_target_properties(gtopk_${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
    set_target_properties(gtopk_${name} PROPERTIES PREFIX "" OUTPUT_NAME "_${name}"
                          INSTALL_RPATH "$ORIGIN" BUILD_WITH_INSTALL_RPATH ON)
    install(TARGETS gtopk_${name} LIBRARY DESTINATION gtopk COMPONENT python)
    add_dependencies(gtopk_python gtopk_${name})
  endforeach()
endfunction()

# gtopk_bundle(<targets>): their shared libraries into the package, by SONAME, as the libraries ask
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
gtopk_bundle(fmt::fmt hwy::hwy)
