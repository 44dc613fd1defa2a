"""Room: tests/architecture. Pictures that are drawn from the tables of docs/."""

from __future__ import annotations

import draw_demo
from arrows import ROOT

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


def test_bars_are_in_proportion_and_parts_without_a_figure_are_left_out() -> None:
    rows = draw_demo.rows(PAGE)
    assert [row["way"] for row in rows] == ["dense", "sparse"]
    first, second = (draw_demo.bar(row, 0, 2.0) for row in rows)
    assert [line for line in first if 'width="40.0"' in line]
    assert [line for line in first if 'width="160.0"' in line]
    assert len(second) == len(first) + 1
    assert "100 ms, 1,000 kB sent" in first[-1]
    assert "50 ms, 100 kB sent" in second[-1]
