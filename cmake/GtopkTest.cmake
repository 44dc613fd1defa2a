# gtopk_test(NAME <name> SOURCES <files> [LABELS <labels>] [TIMEOUT <s>] [LIBRARIES <targets>]
#            [SHARDS <n>] [RUN_SERIAL] [OPTIMIZED] [SANITIZERS <address> <thread>]): a GoogleTest
# program, which ctest runs as a whole, or in n parts side by side; a process for each of some 1,500
# cases would take longer than the cases do. SANITIZERS: those it is built for, none by default.
# Between them these programs show every folder of src/ to AddressSanitizer, and what starts threads
# to ThreadSanitizer; others would show them the same code again.
# Each part writes what became of its cases to reports/<name>.xml, where tools/test counts them.
# Labels: unit, loopback, network (needs root for namespaces), slow. Sanitizer builds get their
# options and suppressions here, so that a bare `ctest` runs as CI does.
find_package(GTest 1.12 REQUIRED)

set(GTOPK_TEST_LABELS unit loopback network slow)  # as tools/test knows them
set(supp "${PROJECT_SOURCE_DIR}/tests/support/sanitizers")
set(GTOPK_TEST_ENVIRONMENT "")
if(GTOPK_SANITIZER STREQUAL "address")
  # The stacks on which locals outlive their function are 64 KiB for each size of frame, not 1 MiB
  # as by default: every exception sweeps all of them.
  set(GTOPK_TEST_ENVIRONMENT
      "ASAN_OPTIONS=detect_stack_use_after_return=1:max_uar_stack_size_log=16:strict_init_order=1"
      "LSAN_OPTIONS=suppressions=${supp}/lsan.supp:print_suppressions=0"
      "UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1")
elseif(GTOPK_SANITIZER STREQUAL "thread")
  # With its memory hooks on, UCX's own thread crashes under ThreadSanitizer at exit.
  set(GTOPK_TEST_ENVIRONMENT
      "TSAN_OPTIONS=suppressions=${supp}/tsan.supp:halt_on_error=1:second_deadlock_stack=1"
      "UCX_MEM_EVENTS=n")
endif()

# UndefinedBehaviorSanitizer takes up to nearly half of the time that a test takes to compile.
# AddressSanitizer sees most of what it would find in the tests' own code, so that goes without. To
# tell a block's locals from dead ones takes two fifths of the rest, so that the tests' own code does
# not do that either. The core is compiled with all of it.
#
# Under a sanitizer, programs are not optimised: test_engine then takes 57 s of processor time to
# compile instead of 86, and 4 % longer to run, because what it calls is optimised (the core, the
# reference and the network). OPTIMIZED is for programs that compute much themselves.
set(GTOPK_TEST_FLAGS "")
set(GTOPK_TEST_PROGRAM_FLAGS "")
if(NOT GTOPK_SANITIZER STREQUAL "none")
  set(GTOPK_TEST_PROGRAM_FLAGS -O0)
endif()
if(GTOPK_SANITIZER STREQUAL "address")
  set(GTOPK_TEST_FLAGS -fno-sanitize=undefined -fno-sanitize-address-use-after-scope)
elseif(CMAKE_BUILD_TYPE STREQUAL "Release")
  set(GTOPK_TEST_FLAGS -O1)  # of the tests' own code alone: what they link is as it is shipped
endif()

# What nearly every test file begins with is parsed once: it is half of what a small one takes to
# compile. It belongs to an executable, because it serves only what is compiled with the same flags.
file(GENERATE OUTPUT "${PROJECT_BINARY_DIR}/tests/headers.cpp" CONTENT "int main() {}\n")
add_executable(gtopk_test_headers "${PROJECT_BINARY_DIR}/tests/headers.cpp")
target_link_libraries(gtopk_test_headers PRIVATE gtopk::core GTest::gtest GTest::gmock)
target_compile_options(gtopk_test_headers PRIVATE ${GTOPK_TEST_FLAGS} ${GTOPK_TEST_PROGRAM_FLAGS})
target_precompile_headers(gtopk_test_headers PRIVATE
  <gmock/gmock.h> <gtest/gtest.h> <fmt/format.h> <algorithm> <array> <atomic> <chrono> <cstdint>
  <functional> <memory> <span> <string> <thread> <vector>)

function(gtopk_test)
  cmake_parse_arguments(PARSE_ARGV 0 arg "RUN_SERIAL;OPTIMIZED" "NAME;TIMEOUT;SHARDS"
                        "SOURCES;LABELS;LIBRARIES;SANITIZERS")
  if(NOT arg_NAME OR NOT arg_SOURCES OR arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "gtopk_test needs NAME and SOURCES; not understood: "
                        "'${arg_UNPARSED_ARGUMENTS}'")
  endif()
  if(NOT arg_LABELS)
    set(arg_LABELS unit)
  endif()
  foreach(label IN LISTS arg_LABELS)
    if(NOT label IN_LIST GTOPK_TEST_LABELS)
      message(FATAL_ERROR "${arg_NAME}: unknown label '${label}': expected one of "
                          "${GTOPK_TEST_LABELS}")
    endif()
  endforeach()
  foreach(source IN LISTS arg_SOURCES)
    file(REAL_PATH "${source}" source BASE_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}")
    set_property(GLOBAL APPEND PROPERTY GTOPK_TEST_SOURCES "${source}")
    if(source MATCHES "/count_allocations.cpp$")  # g++ must not see operator delete and its callers
      set_source_files_properties("${source}" PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    endif()
  endforeach()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  if(NOT arg_SHARDS)
    set(arg_SHARDS 1)
  endif()
  if(NOT GTOPK_SANITIZER IN_LIST arg_SANITIZERS AND NOT GTOPK_SANITIZER STREQUAL "none")
    return()
  endif()
  add_executable(${arg_NAME} ${arg_SOURCES})
  target_link_libraries(${arg_NAME} PRIVATE gtopk::core ${arg_LIBRARIES} GTest::gtest_main
                                            GTest::gmock)
  if(TARGET gtopk_test_support)
    target_link_libraries(${arg_NAME} PRIVATE gtopk_test_support)
  endif()
  if(NOT arg_OPTIMIZED OR GTOPK_TEST_PROGRAM_FLAGS STREQUAL "")
    target_compile_options(${arg_NAME} PRIVATE ${GTOPK_TEST_PROGRAM_FLAGS})
    target_precompile_headers(${arg_NAME} REUSE_FROM gtopk_test_headers)
  endif()
  gtopk_units(${arg_NAME})
  add_dependencies(gtopk_tests ${arg_NAME})
  foreach(shard RANGE 1 ${arg_SHARDS})
    set(entry "${arg_NAME}")
    if(arg_SHARDS GREATER 1)
      string(APPEND entry ".${shard}")
    endif()
    math(EXPR index "${shard} - 1")
    add_test(NAME ${entry} COMMAND ${arg_NAME})
    set_tests_properties(${entry} PROPERTIES
      LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT} COST ${arg_TIMEOUT}  # the longest first
      RUN_SERIAL ${arg_RUN_SERIAL}
      ENVIRONMENT "GTEST_OUTPUT=xml:${PROJECT_BINARY_DIR}/reports/${entry}.xml;\
GTEST_TOTAL_SHARDS=${arg_SHARDS};GTEST_SHARD_INDEX=${index};${GTOPK_TEST_ENVIRONMENT}")
  endforeach()
endfunction()
