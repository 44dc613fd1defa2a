"""Entry `outer-utilisation`: how much of their time replicas compute on shaped links."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reproduce_entries.entry import Cell, Check, Entry, Records, Result, results
from reproduce_entries.paced import LAYERS, utilised
from reproduce_entries.page import COLOURS, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The per cent of time that replicas computed, by Mbit/s and H.
PUBLISHED = {
    50: {1: 0.07, 8: 0.55, 32: 2.41, 128: 11.55},
    200: {1: 0.32, 8: 2.48, 32: 10.01, 128: 36.09},
    1000: {1: 1.74, 8: 12.35, 32: 36.01, 128: 71.52},
}
ROUND_OF_128 = 180  # timed steps in those runs, one of which has an exchange
PUBLISHED_PARAMETERS, PUBLISHED_STEP = 30_846_720, 0.0256
SIDE = 2268  # side of six matrices with as many parameters
SHORTFALL = 0.8  # of a published share; less refutes the entry
SATURATED = 0.8  # share of the cores; above it, replicas also waited for cores
STREAMING, ENOUGH = "streaming-diloco", 95.0
PACE = 0.2
ROUND = {"inner_steps": 30}
METHODS: dict[str, dict[str, Any]] = {
    "dense": {"preset": "dense", "arguments": {}, "steps": 6},
    "diloco": {"preset": "diloco", "arguments": ROUND, "steps": 60},
    "sparseloco": {"preset": "sparseloco", "arguments": ROUND, "steps": 60},
    STREAMING: {
        "preset": STREAMING,
        "arguments": {**ROUND, "fragments": 3, "wire": "4bit", "delay": 1},
        "steps": 60,
    },
}


def grid_cell(megabits: int, h: int, side: int, rounds: int) -> Cell:
    """Return a cell of the published grid; a smaller net has proportionally shorter steps."""
    pace = PUBLISHED_STEP * LAYERS * side**2 / PUBLISHED_PARAMETERS
    cell = {"part": "grid", "kind": "measured", "megabits": megabits, "side": side}
    return {**cell, "pace": round(pace, 6), "inner_steps": h, "rounds": rounds}


def paced_cell(megabits: int, method: str, side: int) -> Cell:
    cell = {"part": "paced", "kind": "measured", "megabits": megabits, "side": side}
    return {**cell, "pace": PACE, "method": method}


def cells(quick: bool) -> list[Cell]:
    if quick:
        return [grid_cell(200, 8, 768, 2), paced_cell(50, STREAMING, 384)]
    found = [paced_cell(mbit, method, 576) for mbit in (50, 200, 10) for method in METHODS]
    found.append(paced_cell(50, STREAMING, 1152))
    return found + [grid_cell(mbit, h, SIDE, 2) for mbit, row in PUBLISHED.items() for h in row]


def run(cell: Cell) -> Result:
    request = {"side": cell["side"], "pace": cell["pace"]}
    if cell["part"] == "grid":
        h = cell["inner_steps"]
        # A step leaves no time to update all parameters, but the data sent is the same.
        request |= {"preset": "diloco", "arguments": {"inner_steps": h}, "moved": 1}
        request["steps"] = h * cell["rounds"]
    else:
        request |= {**METHODS[cell["method"]], "moved": LAYERS}
    return utilised(request, f"{cell['megabits']}mbit")


def share(cell: Cell, result: Result) -> float:
    """Return the set time of the steps over the time that they took, in per cent."""
    return float(100 * cell["pace"] / result["step"])


def by_link(cell: Cell, result: Result) -> float:
    """Return the share in per cent if only steps and bytes over the link took time."""
    link = result["bytes"] * 8 / (cell["megabits"] * 1e6)
    return float(100 * cell["pace"] / (cell["pace"] + link))


def of_whole_rounds(percent: float) -> float:
    """Convert a published share with H = 128 to one exchange in 128 steps."""
    exchange = ROUND_OF_128 * (100 / percent - 1)  # length of the exchange in steps
    return 100 * 128 / (128 + exchange)


def checks(records: Records) -> list[Check]:
    found = []
    for rate in PUBLISHED:
        cells = [each for each in results(records, "grid") if each[0]["megabits"] == rate]
        if cells:
            ratios = [share(c, r) / PUBLISHED[rate][c["inner_steps"]] for c, r in cells]
            said = (
                f"at {rate:,} Mbit/s {sum(ratio >= SHORTFALL for ratio in ratios)} of {len(cells)} "
                f"shares are at least {SHORTFALL:g} of the published one, which they are "
                f"{min(ratios):.2f} to {max(ratios):.2f} times."
            )
            found.append(Check(min(ratios) >= SHORTFALL, said))
    for cell, result in results(records, "paced"):
        if (cell["megabits"], cell["method"]) == (50, STREAMING) and cell["side"] < 1000:
            own = share(cell, result)
            said = f"{STREAMING} computes for {own:.1f} % of the time at 50 Mbit/s."
            found.append(Check(own >= ENOUGH, said))
    return found


def size_and_rate(found: tuple[Cell, Result]) -> tuple[int, int]:
    return found[0]["side"], found[0]["megabits"]


def fields(records: Records) -> dict[str, str]:
    grid = {(c["megabits"], c["inner_steps"]): (c, r) for c, r in results(records, "grid")}
    rates = sorted({megabits for megabits, _ in grid})
    rows = []
    for h in sorted({h for _, h in grid}):
        row = [str(h)]
        for rate in rates:
            cell, result = grid[rate, h]
            shares = (PUBLISHED[rate][h], share(cell, result), by_link(cell, result))
            texts = [f"{each:.2f}" for each in shares]
            texts[1] += "*" * (result["cores_busy"] > SATURATED)
            row.append(", ".join(texts))
        rows.append(row)
    paced = [
        (
            f"`{cell['method']}`, {result['parameters'] / 1e6:.1f} M",
            f"{cell['megabits']:,}",
            f"{share(cell, result):.1f}" + "*" * (result["cores_busy"] > SATURATED),
            f"{1e3 * result['without']:.1f}",
            f"{1e3 * result['step']:,.1f}",
            f"{result['bytes'] / 1e3:,.1f}",
            f"{1e3 * result['cpu_seconds']:.1f}",
            f"{100 * result['cores_busy']:.0f}",
        )
        for cell, result in sorted(results(records, "paced"), key=size_and_rate)
    ]
    costs = [
        (
            f"{cell['megabits']:,}, {cell['inner_steps']}",
            f"{1e3 * result['without']:.1f}",
            f"{result['step'] * cell['inner_steps']:.2f}",
            f"{result['bytes'] * cell['inner_steps'] / 1e6:.1f}",
            f"{result['cpu_seconds'] * cell['inner_steps']:.2f}",
            f"{100 * result['cores_busy']:.0f}",
        )
        for cell, result in grid.values()
    ]
    whole = [f"{of_whole_rounds(row[128]):.1f}" for row in PUBLISHED.values()]
    return {
        "whole": f"{', '.join(whole[:-1])} and {whole[-1]}",
        "grid": table(("H", *(f"{rate:,} Mbit/s" for rate in rates)), rows),
        "costs": table(
            (
                "Mbit/s, H",
                "step without links (ms)",
                "round (s)",
                "sent (MB)",
                "CPU (s)",
                "cores busy, %",
            ),
            costs,
        ),
        "paced": table(
            (
                "method, parameters",
                "Mbit/s",
                "busy, %",
                "step without links (ms)",
                "with links",
                "sent a step (kB)",
                "CPU a step (ms)",
                "cores busy, %",
            ),
            paced,
        ),
    }


def draw(records: Records, figure: Figure) -> None:
    left, right = figure.subplots(1, 2)
    found = results(records, "grid")
    for colour, rate in zip(COLOURS, PUBLISHED, strict=False):
        own = [(c["inner_steps"], share(c, r)) for c, r in found if c["megabits"] == rate]
        if own:
            left.plot(*zip(*own, strict=True), color=colour, label=f"{rate:,} Mbit/s")
            theirs = [(h, PUBLISHED[rate][h]) for h, _ in own]
            left.plot(*zip(*theirs, strict=True), "o", color=colour)
    left.set_xscale("log", base=2)
    left.set_yscale("log")
    left.set_xlabel("H (points: published)")
    left.set_ylabel("time spent computing, %")
    left.legend(fontsize=7)
    paced = [(c, r) for c, r in results(records, "paced") if c["side"] < 1000]
    for colour, method in zip(COLOURS, METHODS, strict=False):
        own = sorted((c["megabits"], share(c, r)) for c, r in paced if c["method"] == method)
        if own:
            right.plot(*zip(*own, strict=True), "o-", color=colour, label=method)
    right.set_xscale("log")
    right.set_xlabel("Mbit/s, steps of 200 ms, H = 30")
    right.legend(fontsize=7)


OUTER_UTILISATION = Entry("outer-utilisation", cells, run, checks, fields, draw)
