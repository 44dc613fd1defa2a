"""An entry: cells to run, and how their records become a page."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Cell = dict[str, Any]
"""What is run, as plain values; "part" and "kind" are among them. Equal cells give equal records,
but for times."""
Result = dict[str, Any]

PAGES = pathlib.Path(__file__).resolve().parent / "pages"

KINDS = {
    "measured": "real ranks of the library ran it",
    "simulated": "the ranks were simulated in one process",
    "replayed": "published times of computing, with communication by a model of the link",
    "arithmetic": "a formula was evaluated",
}


class Record(NamedTuple):
    """A cell that was run. Records are compared and read by cell; the rest says when and how."""

    cell: Cell
    result: Result
    date: str
    seconds: float
    torch: str


Records = Sequence[Record]


class Check(NamedTuple):
    """A part of the claim."""

    holds: bool
    said: str
    """What was found, a sentence."""


@dataclass(frozen=True)
class Entry:
    """A page of docs/results. Its template, pages/NAME.md, begins with the plan."""

    name: str
    cells: Callable[[bool], list[Cell]]
    """Of whether to be quick."""
    run: Callable[[Cell], Result]
    checks: Callable[[Records], list[Check]]
    """As the plan's "Refuted if" has them."""
    fields: Callable[[Records], dict[str, str]]
    """Of the template; without $made, $found and $plot."""
    draw: Callable[[Records, Figure], None]

    @property
    def template(self) -> str:
        return (PAGES / f"{self.name}.md").read_text(encoding="utf-8")


def results(records: Records, part: str) -> list[tuple[Cell, Result]]:
    """Return the results of the cells with this part."""
    return [(each.cell, each.result) for each in records if each.cell["part"] == part]
