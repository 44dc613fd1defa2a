"""The table in docs/environment.md names the environment variables that the sources read."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from helpers.paths import ROOT

PAGE = ROOT / "docs" / "environment.md"


def variables(source: str) -> set[str]:
    """Our variables that occur as strings in a source; a name ending in _ is a prefix."""
    return set(re.findall(r"""["'](GTOPK_[A-Z_]+)["']""", source))


def rows(page: str) -> set[str]:
    return {name.rstrip("…") for name in re.findall(r"^\| `(GTOPK_[A-Z_]+…?)` \|", page, re.M)}


def sources() -> Iterator[str]:
    for path in sorted((ROOT / "src").rglob("*")):
        if path.suffix in (".cpp", ".hpp", ".h", ".py"):
            yield path.read_text()


def test_the_table_and_the_sources_name_the_same_variables() -> None:
    assert set().union(*map(variables, sources())) == rows(PAGE.read_text())


def test_gtopk_info_knows_the_same_ones() -> None:
    advice = (ROOT / "tools" / "programs" / "info" / "advice.cpp").read_text()
    assert variables(advice) - {"GTOPK_"} == rows(PAGE.read_text())


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ('getenv("GTOPK_HOST")', {"GTOPK_HOST"}),
        ("os.environ.get('GTOPK_ONE', 1)", {"GTOPK_ONE"}),
        ('constexpr std::string_view kPrefix = "GTOPK_UCX_";', {"GTOPK_UCX_"}),
        ("// GTOPK_HOST in a comment, GTOPK_MACRO(x)", set()),
    ],
)
def test_variables_are_found_where_they_are_strings(source: str, names: set[str]) -> None:
    assert variables(source) == names


def test_rows_are_found_in_a_table() -> None:
    page = "| `GTOPK_ONE` | 1 |\n| `GTOPK_MANY_…` | none |\nand `GTOPK_HOST` in the text\n"
    assert rows(page) == {"GTOPK_ONE", "GTOPK_MANY_"}
