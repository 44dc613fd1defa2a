"""Pictures that are drawn from the tables of docs/."""

from __future__ import annotations

import re

import draw_curves
import draw_demo
import pytest

from helpers.paths import ROOT

PAGE = """
## The demo

some text

| | step | compute | compress | communicate | sent per step (kB) |
| --- | --- | --- | --- | --- | --- |
| dense | 100.0 | 20.0 | | 80.0 | 1,000.4 |
| sparse | 50.0 | 20.0 | 10.0 | 20.0 | 99.6 |

more text
"""


def test_the_picture_of_the_demo_is_that_of_the_table() -> None:
    committed = (ROOT / "docs" / "results" / "demo.svg").read_text(encoding="utf-8")
    assert committed == draw_demo.picture()


def test_outer_demo_picture_and_table_match_their_record() -> None:
    committed = (ROOT / "docs" / "results" / "demo-outer.svg").read_text(encoding="utf-8")
    drawn, table = draw_demo.outer()
    assert committed == drawn
    assert table in (ROOT / "docs" / "outer.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("low", "high", "found"),
    [
        (0, 60, [0, 10, 20, 30, 40, 50, 60]),
        (0, 85, [0, 20, 40, 60, 80]),
        (1.31, 4.2, [1.5, 2.0, 2.5, 3.0, 3.5, 4.0]),
    ],
)
def test_ticks_are_round_and_few(low: float, high: float, found: list[float]) -> None:
    assert draw_curves.ticks(low, high) == pytest.approx(found)


def test_curves_are_in_proportion() -> None:
    curves = [draw_curves.Curve("a", [(0, 1), (10, 3)]), draw_curves.Curve("b", [(5, 2)])]
    drawn = draw_curves.svg("title", "x", "y", curves)
    (begin, end), (middle,) = (
        [tuple(map(float, each.split(","))) for each in line.split()]
        for line in re.findall(r'polyline points="([^"]+)"', drawn)
    )
    assert middle == pytest.approx(((begin[0] + end[0]) / 2, (begin[1] + end[1]) / 2), abs=0.1)
    assert (end[0] > begin[0], end[1] < begin[1]) == (True, True)


def test_bars_are_proportional_and_omit_parts_without_a_figure() -> None:
    rows = draw_demo.rows(PAGE)
    assert [row["way"] for row in rows] == ["dense", "sparse"]
    first, second = (draw_demo.bar(row, 0, 2.0) for row in rows)
    assert [line for line in first if 'width="40.0"' in line]
    assert [line for line in first if 'width="160.0"' in line]
    assert len(second) == len(first) + 1
    assert "100 ms, 1,000 kB sent" in first[-1]
    assert "50 ms, 100 kB sent" in second[-1]
