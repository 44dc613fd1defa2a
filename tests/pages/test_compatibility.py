"""The tests that docs/compatibility.md and docs/testing.md name."""

from __future__ import annotations

import ast
import pathlib
import re

from helpers.paths import ROOT


def rows(page: str, title: str) -> list[list[str]]:
    """The rows of the table below that heading."""
    section = page.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def named_tests(rows: list[list[str]]) -> dict[str, str | None]:
    """For each feature, the "file.py::function" that its last cell names, or None."""
    found = {row[0]: re.fullmatch(r"`([\w.]+::\w+)`", row[-1]) for row in rows}
    return {feature: match and match.group(1) for feature, match in found.items()}


def is_there(test: str, folder: pathlib.Path) -> bool:
    """Whether one file of that name below the folder has the function."""
    name, function = test.split("::")
    files = list(folder.rglob(name))
    if len(files) != 1:
        return False
    functions = ast.parse(files[0].read_text(encoding="utf-8")).body
    return any(isinstance(each, ast.FunctionDef) and each.name == function for each in functions)


def test_each_feature_names_a_test_that_is_there() -> None:
    page = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    table = rows(page, "Beside other backends")
    assert len(table) > 20
    named = named_tests(table)
    wanting = {row[0] for row in table if row[-1] == "no"}
    assert {feature for feature, test in named.items() if test is None} == wanting
    gone = [test for test in named.values() if test and not is_there(test, ROOT / "tests")]
    assert not gone


def test_what_is_missing_is_found(tmp_path: pathlib.Path) -> None:
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "test_some.py").write_text("def check_this(): pass\n")
    assert is_there("test_some.py::check_this", tmp_path)
    assert not is_there("test_some.py::check_that", tmp_path)
    assert not is_there("test_other.py::check_this", tmp_path)
    page = "\n## A\n| x | y |\n| --- | --- |\n| one | `a.py::b` |\n| two | yes |\n\n## B\n| z |\n"
    assert named_tests(rows(page, "A")) == {"one": "a.py::b", "two": None}


def test_the_page_of_tests_names_files_that_are_there() -> None:
    there = {path.name for path in (ROOT / "tests").rglob("*")}
    page = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    named = re.findall(r"\b(test_\w+\.py|\w+_test\.cpp)\b", page)
    assert len(named) > 50
    assert {name for name in named if name not in there} == set()
