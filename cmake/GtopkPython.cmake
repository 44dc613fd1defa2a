# Which Python the build asks where the wheels lie: the one that pip builds for, or the .venv that
# tools/setup made, or the system's. Sets Python_EXECUTABLE; gtopk_wheel_dir() finds a package
# without importing it, as an import of torch takes seconds and may need more than the build has.
if(NOT Python_EXECUTABLE AND EXISTS "${PROJECT_SOURCE_DIR}/.venv/bin/python")
  set(Python_EXECUTABLE "${PROJECT_SOURCE_DIR}/.venv/bin/python" CACHE FILEPATH
      "Python whose site-packages hold torch and libucx")
endif()
find_package(Python 3.10 COMPONENTS Interpreter)

# gtopk_wheel_dirs(<package> <out>): the directories of an installed Python package, of which one
# without an __init__.py may have several, as a list, or empty.
function(gtopk_wheel_dirs package out)
  set(found "")
  if(Python_EXECUTABLE)
    string(CONCAT script "import importlib.util\n"
                         "spec = importlib.util.find_spec('${package}')\n"
                         "print(*(spec.submodule_search_locations if spec else ()), sep=';', end='')")
    execute_process(COMMAND "${Python_EXECUTABLE}" -c "${script}" OUTPUT_VARIABLE found
                    ERROR_VARIABLE ignored)
  endif()
  set(${out} "${found}" PARENT_SCOPE)
endfunction()

# gtopk_wheel_dir(<package> <out>): the first of them, or empty.
function(gtopk_wheel_dir package out)
  gtopk_wheel_dirs("${package}" found)
  if(found)
    list(GET found 0 found)
  endif()
  set(${out} "${found}" PARENT_SCOPE)
endfunction()
