"""Entry `dgc`: Deep Gradient Compression's momentum correction and warm-up, with and without."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from exchanges import TopK
from recipes import WARMUP
from simulated import PLAIN, Method

from reproduce_entries import trainings
from reproduce_entries.entry import Cell, Check, Entry, Records, Result
from reproduce_entries.page import table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure

DENSITY = 0.001
LADDER = (0.25, 0.0625, 0.015625, 0.004)
DENSE, DROPPING, DGC = trainings.DENSE, "neither", "both"
# For each way: whether the ranks have the momentum, and what the first tenth of the steps sends.
WAYS = {
    DROPPING: (False, None),
    "warm-up": (False, "ladder"),
    "correction": (True, None),
    DGC: (True, "ladder"),
    "dense start": (False, "dense"),
    "correction, dense start": (True, "dense"),
}
TASK = "digits"


@dataclass
class Laddered(TopK):
    """Steps down the ladder of densities, with this many steps for each; 0 means no ladder."""

    stage: int = 0

    warms_up: ClassVar[bool] = False

    def start(self, ranks: int, shapes: Sequence[torch.Size]) -> None:
        super().start(ranks, shapes)
        self.steps = 0

    def mean(self, rows: torch.Tensor, rate: float) -> torch.Tensor:
        at = self.steps // self.stage if self.stage else len(LADDER)
        density = LADDER[at] if at < len(LADDER) else self.density
        self.k = max(1, math.floor(density * self.d + 0.5))
        self.steps += 1
        return super().mean(rows, rate)


def method_of(way: str, steps: int) -> Method:
    if way == DENSE:
        return PLAIN[DENSE]
    correction, start = WAYS[way]
    momentum = 0.9 if correction else 0.0
    if start == "dense":
        return Method(lambda: TopK(DENSITY, momentum=momentum), own_momentum=correction)
    stage = max(1, round(WARMUP * steps / len(LADDER))) if start else 0
    return Method(
        lambda: Laddered(DENSITY, momentum=momentum, stage=stage), own_momentum=correction
    )


def cells(quick: bool) -> list[Cell]:
    ways = (DENSE, *WAYS)
    if quick:
        return trainings.cells(ways, TASK, 40, (0.05,), 2)
    return trainings.cells(ways, TASK, 240, (0.05, 0.1, 0.2), 3)


def run(cell: Cell) -> Result:
    return trainings.run(cell, method_of(cell["part"], cell["steps"]))


def checks(records: Records) -> list[Check]:
    found = [
        Check(
            trainings.mean_behind(records, DGC) <= 0.5,
            f"with both, training ends {trainings.said(records, DGC)}.",
        )
    ]
    for way in (DROPPING, "correction", "warm-up"):
        apart = trainings.mean_behind(records, way, DGC)
        name = {"correction": "with correction alone", "warm-up": "with warm-up alone"}.get(
            way, "with neither"
        )
        said = trainings.said(records, way, DGC).replace("behind both", "behind both together")
        found.append(Check(apart > 0, f"{name} it ends {said}."))
    return found


def fields(records: Records) -> dict[str, str]:
    sent = {each.cell["part"]: each.result["bytes_a_step"] for each in records}
    rows = [
        [*trainings.row(records, way), f"{sent[DENSE] / sent[way]:.0f} ×"] for way in (DENSE, *WAYS)
    ]
    tried = sorted({each.cell["lr"] for each in records})
    rates = []
    for way in (DENSE, *WAYS):
        by_rate = trainings.scores(records, way)
        means = [sum(by_rate[lr].values()) / len(by_rate[lr]) for lr in tried]
        rates.append([way, *(f"{each:.2f}" for each in means)])
    return {
        "scores": table((*trainings.HEAD, "fewer bytes, second half"), rows),
        "rates": table(("way", *(f"{lr:g}" for lr in tried)), rates),
    }


def draw(records: Records, figure: Figure) -> None:
    trainings.draw(records, (DENSE, *WAYS), figure)


DGC_ENTRY = Entry("dgc", cells, run, checks, fields, draw)
