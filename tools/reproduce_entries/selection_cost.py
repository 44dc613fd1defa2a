"""Entry `selection-cost`: CPU time of exact selection and Gaussian-k; what the latter selects."""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from exchanges import TopK
from simulated import Method

from reproduce_entries import trainings
from reproduce_entries.entry import Cell, Check, Entry, Records, Result, results
from reproduce_entries.page import COLOURS, table
from reproduce_entries.theorem1 import alone

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SELECTORS = ("exact", "gaussian", "sampled", "threshold")
TOPK, GAUSSIAN = "torch.topk", "Gaussian-k in torch"
IN_TORCH = (TOPK, GAUSSIAN)
COPY = "copy"
VALUES = {"normal": None, "Student's t, 3": 3.0}
TENTHS = 10


def threshold(u: torch.Tensor, k: int) -> float:
    """Compute Understanding Top-k's Algorithm 1: a normal quantile, corrected at most 3 times."""
    z = math.sqrt(2) * torch.erfinv(torch.tensor(1 - k / u.numel(), dtype=torch.float64)).item()
    deviation, mean = torch.std_mean(u, correction=0)
    found = (mean + z * deviation).item()
    magnitudes = u.abs()
    for _ in range(3):
        count = int((magnitudes > found).sum())
        if 2 * k / 3 <= count <= 4 * k / 3:
            break
        found *= 0.5 if count < 2 * k / 3 else 1.5
    return found


class GaussianTopK(TopK):
    """The exchange `topk` whose ranks select all that reach that threshold."""

    def start(self, ranks: int, shapes: Sequence[torch.Size]) -> None:
        super().start(ranks, shapes)
        self.selected: list[float] = []

    def select(self, row: torch.Tensor) -> torch.Tensor:
        mask = row.abs() > threshold(row, self.k)
        self.selected.append(int(mask.sum()) / self.k)
        return mask


def cells(quick: bool) -> list[Cell]:
    sizes = (1_000_000,) if quick else (1_000_000, 10_000_000)
    found: list[Cell] = [
        {
            "part": "cost",
            "kind": "measured",
            "d": d,
            "density": density,
            "values": values,
            "turns": 3 if quick else 5,
        }
        for d in sizes
        for density in (0.001, 0.01)
        for values in (list(VALUES)[:1] if quick else VALUES)
    ]
    for density in (0.001, 0.01):
        found += trainings.cells((f"{density:g}",), "digits", 40 if quick else 240, (0.05,), 1)
    return found


def run(cell: Cell) -> Result:
    torch.set_num_threads(1)
    if cell["part"] == "cost":
        return cost(cell)
    exchange = GaussianTopK(float(cell["part"]))
    result = trainings.run(cell, Method(lambda: exchange))
    ranks, steps = cell["ranks"], len(exchange.selected) // cell["ranks"]
    by_tenth = []
    for tenth in range(TENTHS):
        begin, end = (ranks * (at * steps // TENTHS) for at in (tenth, tenth + 1))
        some = exchange.selected[begin:end]
        by_tenth.append(
            [round(each, 3) for each in (min(some), statistics.median(some), max(some))]
        )
    exact = trainings.run(cell, Method(lambda: TopK(float(cell["part"]))))
    return {**result, "k": exchange.k, "selected": by_tenth, "exact_score": exact["score"]}


def cost(cell: Cell) -> Result:
    """Measure median CPU milliseconds of this process and selected entries over k, in turn."""
    import gtopk

    alone()
    d, draws = cell["d"], torch.Generator().manual_seed(0)
    k = round(cell["density"] * d)
    u = torch.randn(d, generator=draws)
    freedom = VALUES[cell["values"]]
    if freedom is not None:  # Student's t: a normal over a root mean square of normals
        u /= sum(torch.randn(d, generator=draws).square() for _ in range(int(freedom))).sqrt()
    residual, tensor, state = torch.zeros(d), torch.empty(d), torch.zeros(4, dtype=torch.float64)

    def library(name: str) -> torch.Tensor:
        more: dict[str, Any] = {"state": state} if name == "threshold" else {}
        shared = {"k": k, "residual": residual, "algorithm": "topk", "select": name}
        gtopk.sparse_all_reduce(tensor, **shared, **more)
        return tensor

    ways: dict[str, Callable[[], torch.Tensor]] = {
        **{name: functools.partial(library, name) for name in SELECTORS},
        TOPK: lambda: u.abs().topk(k, sorted=False).indices + 1,
        GAUSSIAN: lambda: (u.abs() > threshold(u, k)).nonzero() + 1,
        COPY: lambda: residual.copy_(u),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    counts = {}
    for turn in range(cell["turns"] + 1):
        for name, way in ways.items():
            tensor.copy_(u)
            residual.zero_()
            begins = time.process_time()
            found = way()
            spent = time.process_time() - begins
            counts[name] = int(found.count_nonzero()) / k
            taken[name] += [1e3 * spent] if turn else []  # the first turn touches memory
    return {
        "ms": {name: round(statistics.median(each), 3) for name, each in taken.items()},
        "selected": {name: round(counts[name], 3) for name in ways if name != COPY},
    }


def ratio(records: Records, over: str, under: str) -> list[float]:
    """Return the CPU time of one over the other's, in each cell."""
    return [each["ms"][over] / each["ms"][under] for _, each in results(records, "cost")]


def late(records: Records) -> dict[str, list[float]]:
    """Return, by density, the medians of the second half of the training over k."""
    some = [each for each in records if each.cell["part"] != "cost"]
    return {
        each.cell["part"]: [tenth[1] for tenth in each.result["selected"][TENTHS // 2 :]]
        for each in some
    }


def checks(records: Records) -> list[Check]:
    found = []
    for over, under, where in (
        (TOPK, GAUSSIAN, "in torch"),
        ("exact", "gaussian", "in this library"),
    ):
        times = ratio(records, over, under)
        said = f"{min(times):.2f} to {max(times):.2f} times the CPU time of Gaussian-k"
        found.append(Check(min(times) > 1, f"{where} exact selection takes {said}."))
    for density, medians in late(records).items():
        said = f"{min(medians):.2f} k to {max(medians):.2f} k"
        found.append(
            Check(
                min(medians) >= 2 / 3 and max(medians) <= 4 / 3,
                f"at {density} the tenths of the second half select {said} at the median.",
            )
        )
    return found


def fields(records: Records) -> dict[str, str]:
    costs, counts, trained = [], [], []
    for cell, each in results(records, "cost"):
        where = [f"{cell['d'] // 10**6} M", f"{cell['density']:g}", cell["values"]]
        costs.append(where + [f"{each['ms'][name]:.1f}" for name in (*SELECTORS, *IN_TORCH, COPY)])
        counts.append(where + [f"{each['selected'][name]:.2f}" for name in (*SELECTORS, *IN_TORCH)])
    for record in (each for each in records if each.cell["part"] != "cost"):
        tenths = record.result["selected"]
        spans = [f"{least:.2g} … {middle:.2g} … {most:.2g}" for least, middle, most in tenths]
        scores = [f"{record.result[name]:.2f}" for name in ("score", "exact_score")]
        trained.append([record.cell["part"], *spans, *scores])
    head = ("d", "density", "values", *(f"`{name}`" for name in SELECTORS), *IN_TORCH)
    tenths = [f"tenth {at}" for at in range(1, TENTHS + 1)]
    largest = max(cell["d"] for cell, _ in results(records, "cost"))
    return {
        "costs": table((*head, COPY), costs),
        "counts": table(head, counts),
        "trained": table(("density", *tenths, "% right", "with exactly k"), trained),
        "published": f"{2.19e-7 * largest * math.log2(largest):.0f} ms",
        "largest": f"{largest // 10**6} M",
    }


def draw(records: Records, figure: Figure) -> None:
    left, right = figure.subplots(1, 2)
    found = results(records, "cost")
    for i, name in enumerate((*SELECTORS, *IN_TORCH, COPY)):
        places = [at + i / 10 for at in range(len(found))]
        left.bar(places, [each["ms"][name] for _, each in found], 0.1, label=name, color=COLOURS[i])
    names = [f"{cell['d'] // 10**6} M\n{cell['density']:g}\n{cell['values']}" for cell, _ in found]
    left.set_xticks([at + 0.3 for at in range(len(found))], names, fontsize=6)
    left.set_yscale("log")
    left.set_ylabel("CPU ms")
    left.legend(fontsize=6)
    for i, record in enumerate(each for each in records if each.cell["part"] != "cost"):
        medians = [each[1] for each in record.result["selected"]]
        right.plot(range(1, TENTHS + 1), medians, "o-", color=COLOURS[i], label=record.cell["part"])
    right.axhline(1, color="black", linewidth=0.8)
    right.set_xlabel("tenth of the sparse steps")
    right.set_ylabel("Gaussian-k selects, over k (median)")
    right.legend(fontsize=7)


SELECTION_COST = Entry("selection-cost", cells, run, checks, fields, draw)
