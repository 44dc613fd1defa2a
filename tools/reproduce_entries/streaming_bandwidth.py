"""Entry `streaming-bandwidth`: the bandwidth at which relatives of DiLoCo keep processors busy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from reproduce_entries.entry import Cell, Check, Entry, Records, Result
from reproduce_entries.page import COLOURS, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

UTILISATIONS = (0.5, 0.8, 0.9, 0.95, 0.99)
# Values are in Gbit/s. The published figures are all on this grid, numpy's logspace(-1, 3, 50).
GRID = tuple(10 ** (-1 + 4 * i / 49) for i in range(50))
H = 100
FITTED = 0.83  # share of 16 bits per parameter; the only fitted number


class Model(NamedTuple):
    """A published model; seconds are for a step without any exchange."""

    parameters: float
    layers: int
    seconds: float


class Method(NamedTuple):
    """A method: when layers are exchanged, and in how many bits."""

    streams: bool
    """Fragments of three layers by turns, in place of the whole model."""
    delay: int
    """Steps that an exchange may take without delaying training."""
    bits: float
    every: int = H
    early: bool = True
    """Whether a layer's exchange begins when its backward is done, not when the step is."""


MODELS = {
    "1B": Model(1e9, 24, 0.1),
    "10B": Model(10e9, 48, 0.8),
    "100B": Model(100e9, 108, 4.9),
}
METHODS = {
    "data parallel": Method(False, 0, 16, every=1),
    "DiLoCo": Method(False, 0, 16),
    "streaming": Method(True, 0, 16),
    "streaming, overlapped": Method(True, 1, 16),
    "streaming, overlapped, 4 bits": Method(True, 1, 4),
}
PUBLISHED = {
    "1B": (
        (86.8, 152.6, 184.2, 222.3, 569),
        (1.4, 6.2, 13.3, 23.3, 86.8),
        (1.4, 5.2, 9.1, 16, 28.1),
        (1.4, 4.3, 6.2, 9.1, 11),
        (0.4, 0.9, 1.7, 2, 3),
    ),
    "10B": (
        (104.8, 222.3, 222.3, 268.3, 471.5),
        (1.7, 7.5, 16, 33.9, 104.8),
        (1.7, 5.2, 9.1, 13.3, 19.3),
        (1.7, 3.6, 5.2, 6.2, 7.5),
        (0.4, 0.9, 1.4, 1.4, 1.7),
    ),
    "100B": (
        (184, 324, 391, 391, 472),
        (3, 11, 23.3, 49.4, 184),
        (2.4, 6.2, 9.1, 11, 19.3),
        (1.7, 3.6, 4.3, 5.2, 5.2),
        (0.5, 0.9, 1.1, 1.1, 1.4),
    ),
}
# These are the bits per parameter and round that one of two replicas sends (docs/outer.md).
OURS = {
    "diloco": Method(False, 0, 32, early=False),
    'diloco, wire="4bit"': Method(False, 0, 4.25, early=False),
    "streaming-diloco": Method(True, 1, 4.25, early=False),
    "sparseloco": Method(False, 0, 9.9 / 64, early=False),
}


def turns(method: Method, layers: int, steps: int) -> dict[int, list[int]]:
    """Return the layers whose exchange begins in each step, last layer first, like gradients."""
    found: dict[int, list[int]] = {}
    if method.streams:
        fragments = layers // 3
        for start in range(0, steps, method.every):
            for i in range(fragments):
                at = start + i * method.every // fragments
                found[at] = list(range(layers - fragments + i, -1, -fragments))
    else:
        for at in range(method.every - 1, steps, method.every):
            found[at] = list(range(layers - 1, -1, -1))
    return found


def utilisation(model: Model, method: Method, gigabits: float, scale: float = FITTED) -> float:
    """Return the share of three rounds in which processors compute, over a link of this rate.

    A third of a step is the forward. In the backward each layer takes as long as any other; the
    link takes one layer after the other. Training waits at the end of a step for exchanges that
    began `delay` steps before.
    """
    steps = 3 * method.every
    layer_seconds = scale * method.bits * model.parameters / model.layers / 1e9 / gigabits
    begun = turns(method, model.layers, steps)
    now = link = 0.0
    ends: dict[int, float] = {}
    for step in range(steps):
        for layer in begun.get(step, ()):
            share = (model.layers - layer) / model.layers if method.early else 1
            done = 1 / 3 + 2 / 3 * share
            link = max(link, now + done * model.seconds) + layer_seconds
            ends[step + method.delay] = link
        now = max(now + model.seconds, ends.get(step, 0.0))
    return steps * model.seconds / now


def least(model: Model, method: Method, share: float, scale: float = FITTED) -> int | None:
    """Return the grid position of the least bandwidth that suffices, if any does."""
    fits = (i for i, each in enumerate(GRID) if utilisation(model, method, each, scale) >= share)
    return next(fits, None)


def place(gigabits: float) -> int:
    """Return the nearest position in the grid."""
    return min(range(len(GRID)), key=lambda i: abs(math.log(GRID[i] / gigabits)))


def cells(quick: bool) -> list[Cell]:
    names = ("1B",) if quick else tuple(MODELS)
    return [{"part": name, "kind": "replayed", "H": H, "fitted": FITTED} for name in names]


def run(cell: Cell) -> Result:
    model = MODELS[cell["part"]]
    replayed = {
        name: [least(model, method, share) for share in UTILISATIONS]
        for name, method in METHODS.items()
    }
    ours = {
        name: [utilisation(model, method, each, scale=1) for each in (0.1, 1, 10)]
        for name, method in OURS.items()
    }
    return {"replayed": replayed, "ours": ours}


def apart(records: Records) -> list[int]:
    """Return by how many grid positions each cell of the table is off."""
    found = []
    for each in records:
        for name, row in zip(METHODS, PUBLISHED[each.cell["part"]], strict=True):
            for got, published in zip(each.result["replayed"][name], row, strict=True):
                found.append(len(GRID) if got is None else got - place(published))
    return found


def checks(records: Records) -> list[Check]:
    off = apart(records)
    equal, near = off.count(0), sum(abs(each) <= 1 for each in off)
    return [
        Check(
            near == len(off),
            f"{near} of {len(off)} bandwidths are within a place of the grid, {equal} are equal.",
        )
    ]


def fields(records: Records) -> dict[str, str]:
    rows, ours = [], []
    for each in records:
        part = each.cell["part"]
        for name, published in zip(METHODS, PUBLISHED[part], strict=True):
            cells = [
                f"{theirs:g}, {'none' if got is None else f'{GRID[got]:.3g}'}"
                for theirs, got in zip(published, each.result["replayed"][name], strict=True)
            ]
            rows.append((f"{part}, {name}", *cells))
        for name, shares in each.result["ours"].items():
            ours.append((f"{part}, `{name}`", *(f"{100 * share:.1f}" for share in shares)))
    return {
        "fitted": f"{FITTED:g}",
        "bandwidths": table(
            ("Gbit/s", *(f"{100 * share:.0f} %" for share in UTILISATIONS)),
            rows,
        ),
        "ours": table(("busy, %", "0.1 Gbit/s", "1", "10"), ours),
    }


def draw(records: Records, figure: Figure) -> None:
    axes = figure.subplots()
    part = records[0].cell["part"]
    percent = [100 * share for share in UTILISATIONS]
    for i, (name, row) in enumerate(zip(METHODS, PUBLISHED[part], strict=True)):
        got = records[0].result["replayed"][name]
        axes.plot(row, percent, "o", color=COLOURS[i])
        lines = [math.nan if each is None else GRID[each] for each in got]
        axes.plot(lines, percent, color=COLOURS[i], label=name)
    axes.set_xscale("log")
    axes.set_xlabel(f"Gbit/s between replicas, {part} (points: published)")
    axes.set_ylabel("time spent computing, %")
    axes.legend(fontsize=7)


STREAMING_BANDWIDTH = Entry("streaming-bandwidth", cells, run, checks, fields, draw)
