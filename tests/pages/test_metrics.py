"""The tables in docs/metrics.md have exactly the figures that are counted."""

from __future__ import annotations

import ast
import re

import pytest

from helpers.paths import ROOT

PACKAGE = ROOT / "src" / "torch_backend" / "gtopk"


def keys_of(module: str, name: str) -> list[str]:
    """Of a TypedDict."""
    tree = ast.parse((PACKAGE / module).read_text(encoding="utf-8"))
    (found,) = (x for x in ast.walk(tree) if isinstance(x, ast.ClassDef) and x.name == name)
    fields = (x.target for x in found.body if isinstance(x, ast.AnnAssign))
    return [each.id for each in fields if isinstance(each, ast.Name)]


def tables() -> list[list[str]]:
    """The first column of each, without its head."""
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    found = re.findall(r"(?m)(?:^\|.*\|\n)+", page)
    return [re.findall(r"(?m)^\| `(\w+)`", each) for each in found]


@pytest.mark.parametrize(
    ("table", "module", "name"),
    [
        (0, "diagnostics/statistics.py", "Statistics"),
        (1, "training/outer_rounds.py", "OuterStatistics"),
    ],
)
def test_the_table_has_each_figure(table: int, module: str, name: str) -> None:
    assert tables()[table] == keys_of(module, name)
