"""The table of tools/coverage adds up what gcovr and coverage report."""

from __future__ import annotations

import json
import pathlib

from coverage_table import main


def cpp(name: str, lines: int, run: int, branches: int, taken: int) -> dict:
    """As gcovr has a file."""
    return {
        "filename": name,
        "line_total": lines,
        "line_covered": run,
        "branch_total": branches,
        "branch_covered": taken,
    }


def python(lines: int, run: int, branches: int, taken: int) -> dict:
    """As coverage has a file."""
    summary = {"num_statements": lines, "covered_lines": run}
    return {"summary": summary | {"num_branches": branches, "covered_branches": taken}}


def printed(folder: pathlib.Path, capsys, cpp_files: list, python_files: dict) -> list[str]:
    """The table's rows, without its titles and rules."""
    (folder / "cpp.json").write_text(json.dumps({"files": cpp_files}))
    (folder / "python.json").write_text(json.dumps({"files": python_files}))
    main(str(folder / "cpp.json"), str(folder / "python.json"))
    return [
        line for line in capsys.readouterr().out.splitlines() if line.startswith(("| `", "| a"))
    ]


def test_a_folder_is_the_sum_of_its_files(tmp_path, capsys):
    files = [
        cpp("src/gtopk/wire/raw.cpp", 90, 90, 10, 5),
        cpp("src/gtopk/wire/rice.cpp", 10, 0, 30, 5),
        cpp("src/engine/engine.cpp", 1900, 1899, 0, 0),
        cpp("include/gtopk/types.hpp", 4, 4, 0, 0),
    ]
    package = "/somewhere/gtopk/build/coverage/python/gtopk"  # a checkout may have this name, too
    modules = {
        f"{package}/__init__.py": python(10, 10, 0, 0),
        f"{package}/core/groups.py": python(20, 10, 4, 1),
        f"{package}/core/launch.py": python(20, 20, 4, 4),
    }
    assert printed(tmp_path, capsys, files, modules) == [
        "| `engine` | 1,900 | 99.9 | 0 | - |",
        "| `gtopk/wire` | 100 | 90.0 | 40 | 25.0 |",
        "| `include` | 4 | 100.0 | 0 | - |",
        "| all | 2,004 | 99.4 | 40 | 25.0 |",
        "| `gtopk` | 10 | 100.0 | 0 | - |",
        "| `gtopk/core` | 40 | 75.0 | 8 | 62.5 |",
        "| all | 50 | 80.0 | 8 | 62.5 |",
    ]
