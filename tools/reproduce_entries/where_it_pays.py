"""Entry `where-it-pays`: when a step with gTop-k is shorter than one that sends everything."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from reproduce_entries.entry import Cell, Check, Entry, Records, Result, results
from reproduce_entries.page import COLOURS, table
from reproduce_entries.steps import MOST_BUSY, timed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RANKS = (4, 16, 64, 256)
LINKS = (0.1, 1, 10, 100)  # Gbit/s
ALPHA = 31e-6  # seconds, between the lab's hosts
BACKWARD = 2 / 3  # share of a step's computing
MARGIN = 0.95  # a winner takes less than this share of the other's time
# These are nanoseconds of one CPU thread, from docs/notebook.md (a) and (g): for selecting and
# committing an element, and for coding, decoding and merging an entry.
SELECT, ENTRY = 1.05, 5.6 + 6.7
SLOW = 7.0  # ratio of docs/notebook.md (d), 0.01 with 4 hosts at 1 Gbit/s, to this model
ENTRY_BYTES = {0.01: 5.03, 0.001: 5.44}  # from entries `volume` and `gtopk-model`


class Work(NamedTuple):
    """The number of parameters, and seconds of computing in a step; both are published."""

    d: float
    seconds: float


WORKS = {
    "VGG-16": Work(14.7e6, 0.140),
    "ResNet-20": Work(0.272e6, 0.146),
    "AlexNet": Work(61.1e6, 0.257),
    "ResNet-50": Work(25.6e6, 4.882),
    "1B": Work(1e9, 0.1),
    "10B": Work(10e9, 0.8),
    "100B": Work(100e9, 4.9),
}


class Point(NamedTuple):
    """A set-up that is run: parameters, seconds of backward per parameter, and Gbit/s."""

    d: int
    pace: float
    link: float

    @property
    def work(self) -> Work:
        return Work(self.d, self.d * self.pace / BACKWARD)


HOSTS = 4
SMALL = 1_638_400  # parameters of tools/bench/ways.py --net paced; --scale 2 has four times as many
# These were chosen by the model before any was run, so that each way is the simplest best one
# somewhere.
POINTS = (
    Point(SMALL, 60e-9, 0.1),
    Point(SMALL, 400e-9, 0.1),
    Point(SMALL, 30e-9, 1),
    Point(SMALL, 60e-9, 1),
    Point(4 * SMALL, 60e-9, 0.1),
    Point(4 * SMALL, 10e-9, 1),
)
# These are the names of the ways in tools/bench/ways.py, in the model's order.
RUN = {"fp32": "dense", "bf16": "bf16", "0.01": "model"}
UNITS = "default unit"


def dense(work: Work, ranks: int, link: float, value_bytes: int = 4) -> float:
    """Return the time of a step whose ring overlaps the backward as well as it can."""
    wire = 2 * (ranks - 1) * (ALPHA + work.d / ranks * value_bytes * 8e-9 / link)
    return (1 - BACKWARD) * work.seconds + max(BACKWARD * work.seconds, wire)


def sparse(work: Work, ranks: int, link: float, density: float, free: bool = False) -> float:
    """Return the time with gTop-k after the backward; free: at no cost and overlapping."""
    k, rounds = density * work.d, math.log2(ranks)
    wire = rounds * (ALPHA + k * ENTRY_BYTES[density] * 8e-9 / link)
    if free:
        return (1 - BACKWARD) * work.seconds + max(BACKWARD * work.seconds, wire)
    return work.seconds + wire + 1e-9 * (SELECT * work.d + rounds * ENTRY * k)


def cells(quick: bool) -> list[Cell]:
    ranks = RANKS[:1] if quick else RANKS
    found: list[Cell] = [
        {"part": "steps", "kind": "replayed", "ranks": list(ranks), "links": list(LINKS)}
    ]
    if not quick:
        shared = {"part": "run", "kind": "measured", "hosts": HOSTS, "turns": 7}
        found += [{**shared, **point._asdict()} for point in POINTS]
    return found


def run_point(cell: Cell) -> Result:
    """Time steps on shaped links; needs root."""
    scale = math.isqrt(cell["d"] // SMALL)
    options = ["--net", "paced", "--scale", str(scale), "--pace", str(1e9 * cell["pace"])]
    options += ["--density", "0.01", "--bucket", "1"]
    rate = f"{round(1000 * cell['link'])}mbit" if cell["link"] < 1 else f"{cell['link']:g}gbit"
    return timed((*RUN.values(), UNITS), cell["hosts"], rate, cell["turns"], *options)


def run(cell: Cell) -> Result:
    if cell["part"] == "run":
        return run_point(cell)
    rows: list[dict[str, Any]] = []
    for name, work in WORKS.items():
        for link in cell["links"]:
            for ranks in cell["ranks"]:
                at = (work, ranks, link)
                seconds = {
                    "fp32": dense(*at),
                    "bf16": dense(*at, value_bytes=2),
                    "0.01": sparse(*at, density=0.01),
                    "0.001": sparse(*at, density=0.001),
                    "free": sparse(*at, density=0.01, free=True),
                    "slow": work.seconds + SLOW * (sparse(*at, density=0.01) - work.seconds),
                }
                rows.append({"model": name, "link": link, "ranks": ranks, "seconds": seconds})
    return {"rows": rows}


def wins(rows: list[dict[str, Any]], ours: str, other: str) -> int:
    return sum(row["seconds"][ours] < MARGIN * row["seconds"][other] for row in rows)


class Compared(NamedTuple):
    """A point by the model and as measured."""

    point: Point
    said: dict[str, float]
    """Seconds of a step, by the model."""
    took: dict[str, float]
    """Medians."""
    units: float
    """Of gTop-k beside the backward."""
    alone: float
    """Without any exchange."""
    busy: float

    @property
    def chosen(self) -> str:
        """Return the way that the model chooses."""
        return list(RUN)[_best(*self.said.values())]

    @property
    def fastest(self) -> str:
        """Return the best way by the same rule, among the measured times."""
        return list(RUN)[_best(*self.took.values())]

    @property
    def lost(self) -> float:
        """Return how much longer the chosen way took than the shortest step."""
        return self.took[self.chosen] / min(self.took.values()) - 1


def compared(records: Records) -> list[Compared]:
    found = []
    for cell, result in results(records, "run"):
        point = Point(cell["d"], cell["pace"], cell["link"])
        at = (point.work, cell["hosts"], point.link)
        ways = result["ways"]
        said = (dense(*at), dense(*at, value_bytes=2), sparse(*at, density=0.01))
        took = {name: ways[way][0] / 1e3 for name, way in RUN.items()}
        alone, units = (ways[way][0] / 1e3 for way in ("no_sync", UNITS))
        each = (dict(zip(RUN, said, strict=True)), took, units, alone)
        found.append(Compared(point, *each, result["busy"]))
    return found


def checks(records: Records) -> list[Check]:
    rows = results(records, "steps")[0][1]["rows"]
    fast = [row for row in rows if row["link"] >= 10]
    found = []
    for ours, said in (
        ("0.01", "gTop-k at 0.01 on a CPU thread is"),
        ("slow", "taking as much longer than modelled as it did at worst when measured, it is"),
        ("free", "if it cost no computing, it would be"),
    ):
        ahead = [row for row in fast if wins([row], ours, "bf16")]
        models = ", ".join(dict.fromkeys(row["model"] for row in ahead))
        found.append(
            Check(
                len(ahead) <= 0.03 * len(fast),
                f"{said} ahead of bf16 in {len(ahead)} of {len(fast)} set-ups of at least 10 "
                f"Gbit/s{f' ({models})' if ahead else ''}.",
            )
        )
    trusted = [each for each in compared(records) if each.busy <= MOST_BUSY]
    if trusted:
        right = [each for each in trusted if each.lost <= 1 - MARGIN]
        most = max(each.lost for each in trusted)
        found.append(
            Check(
                len(right) == len(trusted),
                f"the way that the model chooses is within 5 % of the shortest step in "
                f"{len(right)} of {len(trusted)} set-ups that were run; at worst it takes "
                f"{100 * most:.0f} % longer.",
            )
        )
    return found


def run_rows(records: Records) -> list[list[str]]:
    """Return rows of milliseconds."""
    return [
        [
            f"{each.point.d / 1e6:.1f} M, {1e3 * each.alone:.0f} ms, {each.point.link:g}",
            *(f"{1e3 * each.said[name]:.0f}, {1e3 * each.took[name]:.0f}" for name in RUN),
            f"{1e3 * each.units:.0f}",
            each.chosen,
            each.fastest,
            f"{100 * each.lost:.0f}",
            f"{100 * each.busy:.0f}",
        ]
        for each in compared(records)
    ]


def fields(records: Records) -> dict[str, str]:
    (cell, result), *_ = results(records, "steps")
    rows = result["rows"]
    pairs = [
        (ours, other) for ours in ("0.01", "0.001", "free", "slow") for other in ("fp32", "bf16")
    ]
    counts = []
    for link in LINKS:
        some = [row for row in rows if row["link"] == link]
        won = (f"{wins(some, *pair)} of {len(some)}" for pair in pairs)
        counts.append((f"{link:g} Gbit/s", *won))
    ranks = cell["ranks"][:2][-1]
    steps = [
        (
            f"{row['model']}, {row['link']:g}",
            *(f"{1e3 * row['seconds'][name]:.4g}" for name in row["seconds"]),
        )
        for row in rows
        if row["ranks"] == ranks
    ]
    head = [f"{ours} over {other}" for ours, other in pairs]
    return {
        "counts": table(("link", *head), counts),
        "steps": table(("model, Gbit/s", "fp32", "bf16", "0.01", "0.001", "free", "slow"), steps),
        "ranks": str(ranks),
        "losses": "[convergence](convergence.md), [adamw](adamw.md)",
        "checked": table(
            ("10 M parameters, 4 hosts", "model (ms)", "measured (ms)", "measured over model"),
            _checked(),
        ),
        "run": table(
            (
                *("parameters, computing, Gbit/s", *RUN, "0.01 in units", "the model's choice"),
                *("as run", "longer, %", "cores busy, %"),
            ),
            run_rows(records),
        ),
    }


def _checked() -> list[list[str]]:
    """Compare the model with docs/notebook.md (d), whose backward hardly computes."""
    work, rows = Work(10e6, 0.0), list[list[str]]()
    ways: tuple[tuple[str, Callable[[float], float], tuple[float, float]], ...] = (
        ("dense", lambda link: dense(work, 4, link), (5352, 717)),
        ("0.01", lambda link: sparse(work, 4, link, 0.01), (258, 148)),
        ("0.001", lambda link: sparse(work, 4, link, 0.001), (108, 88)),
    )
    for name, seconds, measured in ways:
        for link, real in zip((0.1, 1), measured, strict=True):
            ms = 1e3 * seconds(link)
            label = f"{name}, {link:g} Gbit/s"
            rows.append([label, f"{ms:.4g}", f"{real:,}", f"{real / ms:.2f}"])
    return rows


def draw(records: Records, figure: Figure) -> None:
    """Draw which way is best with 16 ranks, over bandwidth and computing; all grow with d."""
    axes = figure.subplots()
    links = [10 ** (-1.5 + i / 8) for i in range(33)]  # Gbit/s
    loads = [10 ** (-2 + i / 8) for i in range(49)]  # seconds per step for 1e9 parameters
    best = []
    for load in loads:
        at = [(Work(1e9, load), 16, link) for link in links]
        best.append([_best(dense(*x), dense(*x, value_bytes=2), sparse(*x, 0.01)) for x in at])
    axes.contourf(links, loads, best, levels=[-0.5, 0.5, 1.5, 2.5], colors=COLOURS[:3], alpha=0.4)
    for name, link, load in (("fp32", 25, 1e3), ("bf16", 60, 0.5), ("gTop-k at 0.01", 0.1, 0.3)):
        axes.text(link, load, name, ha="center", weight="bold")
    for i, (name, work) in enumerate(WORKS.items()):
        load = work.seconds / work.d * 1e9
        axes.axhline(load, color="black", linewidth=0.5, linestyle=":")
        axes.text(links[-1 if i % 2 else -5], load, name, fontsize=7, ha="right", va="bottom")
    for each in compared(records):
        load = each.point.work.seconds / each.point.d * 1e9
        colour = COLOURS[list(RUN).index(each.fastest)]
        axes.plot(each.point.link, load, "o", color=colour, markeredgecolor="black")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("Gbit/s")
    axes.set_ylabel("seconds a step for 1e9 parameters")


def _best(*seconds: float) -> int:
    """Return the first that no later one beats by the margin."""
    chosen = 0
    for i, each in enumerate(seconds):
        if each < MARGIN * seconds[chosen]:
            chosen = i
    return chosen


WHERE_IT_PAYS = Entry("where-it-pays", cells, run, checks, fields, draw)
