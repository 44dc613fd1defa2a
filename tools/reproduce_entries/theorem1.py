"""Entry `theorem1`: Top-k's remainder of recorded gradients, and Gaussian-k's selection size."""

from __future__ import annotations

import functools
import math
import statistics
from typing import TYPE_CHECKING, Any

import torch
from exchanges import TopK
from simulate import Training
from simulated import Method
from tasks import TASKS

from reproduce_entries.entry import Cell, Check, Entry, Records, Result
from reproduce_entries.page import COLOURS, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RANKS = 4
LR = {"digits": 0.05, "gpt-0.1m": 8e-3}


class Recorder(TopK):
    """The exchange `topk`, which records the first rank's input."""

    gradient: torch.Tensor
    acc: torch.Tensor | None = None

    def mean(self, rows: torch.Tensor, rate: float) -> torch.Tensor:
        self.gradient, self.acc = rows[0].clone(), None
        return super().mean(rows, rate)

    def select(self, row: torch.Tensor) -> torch.Tensor:
        if self.acc is None:
            self.acc = row.clone()
        return super().select(row)


def quantile_count(u: torch.Tensor, k: int) -> int:
    """Return how many entries a normal quantile of mean and deviation selects, uncorrected."""
    z = math.sqrt(2) * torch.erfinv(torch.tensor(1 - k / u.numel(), dtype=torch.float64)).item()
    threshold = u.double().mean() + z * u.double().std(correction=0)
    return int((u.abs().double() >= threshold).sum())


@functools.cache
def alone() -> None:
    """Make this process a group of one rank of the library."""
    import torch.distributed as dist

    import gtopk  # noqa: F401  registers the backend

    dist.init_process_group("gtopk", store=dist.HashStore(), rank=0, world_size=1)


def selected(u: torch.Tensor, k: int) -> int:
    """Return how many entries the library's selector `gaussian` selects."""
    import gtopk

    alone()
    result = u.clone()
    gtopk.sparse_all_reduce(result, k=k, algorithm="topk", select="gaussian")
    return int(result.count_nonzero())


def figures(u: torch.Tensor, k: int) -> dict[str, Any]:
    from gtopk.diagnostics.inequalities import of_rank

    known = of_rank(u, k, None)
    centred = u.double() - u.double().mean()
    square = centred.square().mean()
    return {
        "left": known.contraction,
        "above_chord": known.above_chord,
        "kurtosis": (centred.pow(4).mean() / square.square()).item(),
        "quantile": quantile_count(u, k) / k,
        "gaussian": selected(u, k) / k,
    }


def cells(quick: bool) -> list[Cell]:
    trainings = (("digits", 240), ("gpt-0.1m", 300))
    some = [(*each, density) for each in trainings for density in (0.001, 0.01, 0.1)]
    if quick:
        some = [("digits", 40, 0.01)]
    return [
        {
            "part": task,
            "kind": "simulated",
            "density": density,
            "steps": steps,
            "ranks": RANKS,
            "lr": LR[task],
            "seed": 0,
            "points": 8,
        }
        for task, steps, density in some
    ]


def run(cell: Cell) -> Result:
    torch.set_num_threads(1)
    ranks = cell["ranks"]
    tasks = [TASKS[cell["part"]](rank, ranks, "alike", cell["seed"]) for rank in range(ranks)]
    recorder = Recorder(cell["density"])
    training = Training(tasks, Method(lambda: recorder), cell["lr"], cell["steps"])
    points = []
    for step in range(1, cell["steps"] + 1):
        training.step()
        if step % (cell["steps"] // cell["points"]) == 0:
            assert recorder.acc is not None
            points.append(
                {
                    "step": step,
                    "gradient": figures(recorder.gradient, recorder.k),
                    "acc": figures(recorder.acc, recorder.k),
                }
            )
    d, k = recorder.d, recorder.k
    return {"d": d, "k": k, "random": 1 - k / d, "bell": (1 - k / d) ** 2, "points": points}


def points_of(records: Records, of: str) -> list[dict[str, float]]:
    """Return the points of "gradient" or "acc", with the bound."""
    return [
        {**point[of], "bell": record.result["bell"]}
        for record in records
        for point in record.result["points"]
    ]


def checks(records: Records) -> list[Check]:
    acc, gradients = points_of(records, "acc"), points_of(records, "gradient")
    every = gradients + acc
    held = sum(each["left"] <= each["bell"] for each in every)
    convex = sum(each["above_chord"] <= 1e-9 for each in every)
    alone, few = (statistics.median(each[n] for each in acc) for n in ("quantile", "gaussian"))
    return [
        Check(
            held == len(every),
            f"the bound holds for {held} of {len(every)} vectors; the squares of {convex} lie "
            "below their chord.",
        ),
        Check(alone < 1, f"the quantile by itself selects {alone:.2f} k at the median."),
        Check(few < 1, f"corrected as in Algorithm 1 it selects {few:.2f} k at the median."),
    ]


def fields(records: Records) -> dict[str, str]:
    rows = []
    for record in records:
        for of in ("gradient", "acc"):
            spans = []
            for name in ("left", "kurtosis", "quantile", "gaussian"):
                values = [point[name] for point in points_of([record], of)]
                spans.append(f"{min(values):.3g} … {max(values):.3g}")
            bounds = (f"{record.result[name]:.4f}" for name in ("random", "bell"))
            name = f"{record.cell['part']}, {of}"
            rows.append((name, f"{record.cell['density']:g}", *bounds, *spans))
    head = ("of", "density", "random", "bound", "Top-k leaves", "kurtosis")
    return {"vectors": table((*head, "quantile selects, k", "`gaussian` selects, k"), rows)}


def draw(records: Records, figure: Figure) -> None:
    left, right = figure.subplots(1, 2)
    for i, record in enumerate(records):
        cell, found = record.cell, record.result
        steps = [point["step"] / cell["steps"] for point in found["points"]]
        name = f"{cell['part']}, {cell['density']:g}"
        for of, style in (("gradient", ":"), ("acc", "-")):
            share = [point[of]["left"] / found["bell"] for point in found["points"]]
            count = [point[of]["quantile"] for point in found["points"]]
            label = name if of == "acc" else None
            left.plot(steps, share, style, color=COLOURS[i], label=label)
            right.plot(steps, count, style, color=COLOURS[i])
    left.axhline(1, color="black", linewidth=0.8)
    left.set_ylabel("Top-k leaves, over the bound")
    right.axhline(1, color="black", linewidth=0.8)
    right.set_yscale("symlog", linthresh=1)
    right.set_ylabel("normal quantile selects, over k")
    for axes in (left, right):
        axes.set_xlabel("share of the training (dotted: gradients alone)")
    left.legend(fontsize=7)


THEOREM1 = Entry("theorem1", cells, run, checks, fields, draw)
