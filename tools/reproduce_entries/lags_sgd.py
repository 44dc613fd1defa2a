"""Entry `lags-sgd`: a selection in each layer against one for all, its assumption, and overlap."""

from __future__ import annotations

import math
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from exchanges import Exchange, GTopK, TopK
from simulate import Training
from simulated import PLAIN, Method
from tasks import TASKS

from reproduce_entries import ROOT, trainings
from reproduce_entries.entry import Cell, Check, Entry, Records, Result, results
from reproduce_entries.page import COLOURS, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TASK, DENSITY = "digits", 0.01
ONE, LAYERS, ADAPTIVE = "one selection", "layer-wise", "adaptive"
PLAINLY = "the density in each layer, however many entries that are"
WAYS = (trainings.DENSE, ONE, LAYERS, ADAPTIVE)
# These are the link and the backward by which "adaptive" chooses: 100 Mbit/s, 8 bytes per entry.
LATENCY, ENTRY, PACE = 31e-6, 64 / 100e6, 60e-9
KINDS: dict[str, Callable[[float], Exchange]] = {"topk": TopK, "gtopk": GTopK}
MOST_BUSY = 0.8  # share of the cores; docs/lab.md allows no claim of time above it
BENCHMARK = ROOT / "tools" / "bench" / "run"
# These are the names in the benchmark.
TIMED = {"no_sync": "no exchange", "model": ONE, "layer-wise": LAYERS, "adaptive": ADAPTIVE}


def adaptive_counts(sizes: Sequence[int], density: float) -> list[int]:
    """Return k of each layer by the library's rule. sizes: in the order of the backward."""
    from gtopk.state.adaptive import Piece, choose

    ready = [PACE * sum(sizes[1 : i + 1]) for i in range(len(sizes))]
    pieces = [Piece(size, None, at) for size, at in zip(sizes, ready, strict=True)]
    rounds = math.log2(trainings.RANKS)

    def cost(elements: int, kind: object, at: float) -> float:
        return rounds * (LATENCY + at * elements * ENTRY)

    chosen = choose(pieces, 0.0, cost, (density / 4, 4 * density), merges=False)
    densities = {each.members[0]: each.density for each in chosen}
    return [max(1, round(densities[i] * size)) for i, size in enumerate(sizes)]


def even_counts(sizes: Sequence[int], total: int) -> list[int]:
    """Return k of each layer at one density, with `total` entries in all."""
    found = [max(1, round(total * size / sum(sizes))) for size in sizes]
    found[found.index(max(found))] += total - sum(found)
    return found


class Layers(Exchange):
    """Gives each layer its own exchange."""

    warms_up: ClassVar[bool] = True

    def __init__(self, way: str, kind: str = "topk", density: float = DENSITY) -> None:
        self.way, self.kind, self.density = way, KINDS[kind], density

    def start(self, ranks: int, shapes: Sequence[torch.Size]) -> None:
        super().start(ranks, shapes)
        self.sizes = [shape.numel() for shape in shapes]
        self.counts = adaptive_counts(self.sizes, self.density)
        total = sum(self.counts)  # the other ways send this number, too
        if self.way == PLAINLY:
            self.counts = [max(1, round(self.density * size)) for size in self.sizes]
        elif self.way == LAYERS:
            self.counts = even_counts(self.sizes, total)
        elif self.way == ONE:
            self.sizes, self.counts = [self.d], [total]
        self.parts = []
        for size, k in zip(self.sizes, self.counts, strict=True):
            self.parts.append(self.kind(k / size))
            self.parts[-1].start(ranks, [torch.Size([size])])

    def mean(self, rows: torch.Tensor, rate: float) -> torch.Tensor:
        split = zip(self.parts, rows.split(self.sizes, dim=1), strict=True)
        means = [part.mean(some, rate) for part, some in split]
        self.bytes = sum(part.bytes for part in self.parts)
        self.last = means
        return torch.cat(means)

    def deltas(self) -> list[float]:
        """Return, by layer, what the last step leaves of the sum over what Random-k leaves."""
        found = []
        for part, k, mean in zip(self.parts, self.counts, self.last, strict=True):
            left = part.residual.double().sum(0)
            total = mean.double() * self.ranks + left
            random = (1 - k / len(mean)) * total.square().sum().item()
            found.append(left.square().sum().item() / random if random else 0.0)
        return found


def cells(quick: bool) -> list[Cell]:
    if quick:
        found = trainings.cells(WAYS, TASK, 40, (0.05,), 2)
    else:
        found = trainings.cells(WAYS, TASK, 240, (0.1, 0.2), 3)
    steps = 40 if quick else 120
    some = [("digits", shards, at) for shards in ("alike", "skewed") for at in (0.01, 0.001)]
    some = some[1:2] if quick else [*some, ("gpt-0.1m", "alike", 0.01)]
    shared = {"kind": "simulated", "ranks": trainings.RANKS, "steps": steps, "seed": 0}
    for task, shards, density in some:
        about = {"task": task, "shards": shards, "density": density}
        found += [{"part": "delta", **shared, **about, "exchange": kind} for kind in KINDS]
    found.append(
        {
            "part": "overlap",
            "kind": "measured",
            "hosts": 2 if quick else 4,
            "rate": "100mbit",
            "density": 0.05,
            "turns": 5 if quick else 25,
        }
    )
    return found


def run(cell: Cell) -> Result:
    if cell["part"] == "overlap":
        return overlap(cell)
    if cell["part"] == "delta":
        return delta(cell)
    if cell["part"] == trainings.DENSE:
        return trainings.run(cell, PLAIN[trainings.DENSE])
    exchange = Layers(cell["part"])
    result = trainings.run(cell, Method(lambda: exchange))
    return {**result, "k": exchange.counts}


def delta(cell: Cell) -> Result:
    """Train layer by layer; return each layer's size, k, and delta after the warm-up."""
    torch.set_num_threads(1)
    ranks = range(cell["ranks"])
    tasks = [TASKS[cell["task"]](rank, len(ranks), cell["shards"], cell["seed"]) for rank in ranks]
    exchange = Layers(PLAINLY, cell["exchange"], cell["density"])
    training = Training(tasks, Method(lambda: exchange), tasks[0].lr, cell["steps"])
    steps = []
    for step in range(cell["steps"]):
        training.step()
        if step >= training.warmup:
            steps.append(exchange.deltas())
    of_layers = zip(exchange.sizes, exchange.counts, zip(*steps, strict=True), strict=True)
    return {
        "steps": len(steps),
        "layers": [
            {
                "elements": size,
                "k": k,
                "median": round(statistics.median(each), 4),
                "most": round(max(each), 4),
                "above": sum(one > 1 for one in each),
            }
            for size, k, each in of_layers
        ],
    }


def overlap(cell: Cell) -> Result:
    """Time steps of paced layers on shaped hosts, in ms; needs root."""
    options = ["--hosts", str(cell["hosts"]), "--rate", cell["rate"], "--"]
    options += ["-n", str(cell["turns"]), "--density", str(cell["density"]), "--net", "paced"]
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), "ways", *options, "--ways", *list(TIMED)[1:]],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return parsed(done.stdout)


def parsed(said: str) -> Result:
    """Parse medians of tools/bench/ways.py, ratios by turn, and how busy the cores were."""
    times, ratios = {}, {}
    for name, way in TIMED.items():
        (row,) = re.findall(rf"^{name} +(\S+) ", said.partition("# of rank 0")[0], re.MULTILINE)
        times[way] = float(row)
        over = rf"^# {name} over model, turn by turn: median (\S+), (\S+) to (\S+)$"
        for found in re.findall(over, said, re.MULTILINE):
            ratios[way] = [float(each) for each in found]
    (busy,) = re.findall(r"cores busy (\d+)%", said)
    return {"ms": times, "over_one": ratios, "busy": int(busy) / 100}


def layers_of(records: Records, kind: str) -> list[Result]:
    """Return the layers of all trainings with this exchange."""
    some = [result for cell, result in results(records, "delta") if cell["exchange"] == kind]
    return [layer for result in some for layer in result["layers"]]


def checks(records: Records) -> list[Check]:
    found = []
    for way in (LAYERS, ADAPTIVE):
        apart = trainings.mean_behind(records, way, ONE)
        said = trainings.said(records, way, ONE)
        found.append(Check(apart <= 0.5, f"{way} ends {said} of as many entries."))
    for kind in KINDS:
        layers = layers_of(records, kind)
        over = sum(each["above"] > 0 for each in layers)
        most = max(each["most"] for each in layers)
        said = f"δ exceeds 1 in {over} of {len(layers)} layers; at most it is {most:.3f}"
        found.append(Check(over == 0, f"with `{kind}`, {said}."))
    ((_, timed),) = results(records, "overlap")
    for way in (LAYERS, ADAPTIVE) if timed["busy"] <= MOST_BUSY else ():
        middle, least, most = timed["over_one"][way]
        said = f"{middle:.2f} of one selection's ({least:.2f} to {most:.2f} turn by turn)"
        found.append(Check(middle < 1, f"on paced layers, a step that is {way} takes {said}."))
    return found


def fields(records: Records) -> dict[str, str]:
    rows = [
        [*trainings.row(records, way), " + ".join(map(str, _counts(records, way)))] for way in WAYS
    ]
    deltas = []
    for cell, result in results(records, "delta"):
        layers = result["layers"]
        above = sum(each["above"] for each in layers) / (len(layers) * result["steps"])
        deltas.append(
            [
                f"{cell['task']}, {cell['shards']}",
                f"{cell['density']:g}",
                f"`{cell['exchange']}`",
                str(len(layers)),
                f"{min(each['median'] for each in layers):.3f} … "
                f"{max(each['median'] for each in layers):.3f}",
                f"{max(each['most'] for each in layers):.3f}",
                f"{100 * above:.2f} %",
            ]
        )
    ((cell, timed),) = results(records, "overlap")
    steps = []
    for way, each in timed["ms"].items():
        ratio = timed["over_one"].get(way)
        over = f"{ratio[0]:.2f}, {ratio[1]:.2f} to {ratio[2]:.2f}" if ratio else ""
        steps.append([way, f"{each:.0f}", over])
    head = ("training", "density", "exchange", "layers", "medians of layers", "largest", "above 1")
    return {
        "scores": table((*trainings.HEAD, "k of the layers, last to first"), rows),
        "deltas": table(head, deltas),
        "steps": table(("step", "ms, median", "over one selection, turn by turn"), steps),
        "busy": f"{100 * timed['busy']:.0f} %",
        "decided": (
            "so the ratios count"
            if timed["busy"] <= MOST_BUSY
            else "**so nothing is decided here**: no time may be claimed from such a run"
        ),
        "hosts": str(cell["hosts"]),
        "turns": str(cell["turns"]),
    }


def _counts(records: Records, way: str) -> list[int]:
    found: list[int] = results(records, way)[0][1].get("k", [])
    return found


def draw(records: Records, figure: Figure) -> None:
    left, right = figure.subplots(1, 2)
    for i, way in enumerate(WAYS):
        points = list(trainings.best(records, way).values())
        left.plot([i] * len(points), points, "o", color=COLOURS[i], alpha=0.6)
    left.set_xticks(range(len(WAYS)), WAYS, fontsize=7)
    left.set_ylabel("% right at the best rate, each seed")
    for i, kind in enumerate(KINDS):
        layers = layers_of(records, kind)
        sizes = [each["elements"] for each in layers]
        right.plot(sizes, [each["most"] for each in layers], "o", color=COLOURS[i], label=kind)
        right.plot(sizes, [each["median"] for each in layers], "x", color=COLOURS[i])
    right.axhline(1, color="black", linewidth=0.8)
    right.set_xscale("log")
    right.set_xlabel("elements of a layer")
    right.set_ylabel("δ: largest (o) and median (x) of steps")
    right.legend(fontsize=7)


LAGS_SGD = Entry("lags-sgd", cells, run, checks, fields, draw)
