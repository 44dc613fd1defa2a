# Compiler flags that every target of this project gets: language, warnings, floating point,
# sanitizers. It knows no target by name.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# Hidden by default: the Python module lives in one process with torch, which carries its own fmt.
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release or RelWithDebInfo" FORCE)
endif()

# With ccache, what was compiled before is a copy, also in another build directory: it sees paths
# relative to the project. Nothing depends on it.
find_program(GTOPK_CCACHE ccache)
if(GTOPK_CCACHE AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}"
      CCACHE_NOHASHDIR=1 "CCACHE_SLOPPINESS=pch_defines,time_macros" "${GTOPK_CCACHE}")
  add_compile_options(-fpch-preprocess)  # without it ccache passes by what has precompiled headers
endif()

add_compile_options(-Wall -Wextra -Wpedantic)
if(GTOPK_WERROR)
  add_compile_options(-Werror)
endif()

# Results are bitwise reproducible: no path may fuse a multiply-add that another path lacks, and
# the target stays the baseline ISA (Highway picks the kernel at run time).
add_compile_options(-ffp-contract=off -fno-math-errno)

if(GTOPK_SANITIZER STREQUAL "address")
  # vptr looks at memory through a pipe, and fails where a test leaves no descriptor for one. The
  # three others check each access to a member, which is a third of what the core takes to compile;
  # AddressSanitizer sees most of what they find, but no misaligned access.
  add_compile_options(-fsanitize=address,undefined
                      -fno-sanitize=vptr,null,object-size,alignment -fno-sanitize-recover=all
                      -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
elseif(GTOPK_SANITIZER STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
elseif(NOT GTOPK_SANITIZER STREQUAL "none")
  message(FATAL_ERROR "GTOPK_SANITIZER is '${GTOPK_SANITIZER}': expected none, address or thread")
endif()

# gtopk_units(<target> [<folder>...]): with GTOPK_UNITS all files of the target (of each of these
# folders) are compiled at once, in a third of the time or less, as each header is read once. A change
# to one file then compiles its whole folder: preset dev is for working on one. Names of a folder's
# files must differ; files with Highway's loops stay apart, as they include themselves.
function(gtopk_units target)
  if(NOT GTOPK_UNITS)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
  # Everything of a unit is in one file: nobody else sees its anonymous namespaces' types.
  target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
  if(NOT ARGN)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD_MODE GROUP)
  foreach(folder IN LISTS ARGN)
    file(GLOB sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/${folder}/*.cpp")
    foreach(source IN LISTS sources)
      file(STRINGS "${source}" loops REGEX "foreach_target")
      if(NOT loops)
        set_source_files_properties("${source}" TARGET_DIRECTORY ${target}
                                    PROPERTIES UNITY_GROUP "${folder}")
      endif()
    endforeach()
  endforeach()
endfunction()

# gtopk_old_symbols(<target>): binds what it calls of libstdc++ to versions that systems older than
# the compiler have, too.
function(gtopk_old_symbols target)
  target_compile_options(${target} PRIVATE
      "$<$<COMPILE_LANGUAGE:CXX>:SHELL:-include ${PROJECT_SOURCE_DIR}/cmake/old_symbols.hpp>")
endfunction()
