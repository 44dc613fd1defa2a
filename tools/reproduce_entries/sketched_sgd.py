"""Entry `sketched-sgd`: accuracy at compressions of 4 and 8, bytes, and what the sketch finds."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, ClassVar

from simulated import PLAIN, Method
from sketches import SENT, Sketch, TrueTopK
from table import mean_of

from reproduce_entries import trainings
from reproduce_entries.entry import Cell, Check, Entry, Records, Result, results
from reproduce_entries.page import table
from reproduce_entries.ranks import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TASK = "digits"
ELEMENTS = 1_000_000  # length of the vectors whose bytes are counted


class ColdSketch(Sketch):
    """The sketch from the first step on, as in the paper."""

    warms_up: ClassVar[bool] = False


class ColdTrueTopK(TrueTopK):
    """The same for the exact selection that the sketch approximates."""

    warms_up: ClassVar[bool] = False


def density(compression: int) -> float:
    """Return the density at which a sketch sends this many times less than dense."""
    return 1 / (SENT * compression)


SKETCHED = {
    f"{name}, {compression} ×": (kind, compression)
    for compression in (4, 8)
    for name, kind in (("sketch", ColdSketch), ("true top-k", ColdTrueTopK))
}
CODED = {"int8, 4 ×": "int8", "4bit, 7.5 ×": "4bit"}
WAYS = (trainings.DENSE, *SKETCHED, *CODED)
# These are the first seed's rates, extended beyond a best rate at the edge, and its best rate,
# which other seeds use.
RATES = {
    **dict.fromkeys(WAYS, (0.05, 0.1, 0.2)),
    "sketch, 8 ×": (0.025, 0.05, 0.1, 0.2),
}
BEST = {
    **dict.fromkeys(WAYS, 0.1),
    trainings.DENSE: 0.2,
    "sketch, 8 ×": 0.05,
    "true top-k, 4 ×": 0.2,
}
# These are the calls of a rank, as arguments of sparse_all_reduce.
CALLS = {
    "dense": {"algorithm": "dense"},
    "sketch, 4 ×": {"algorithm": "sketch", "density": density(4)},
    "sketch, 8 ×": {"algorithm": "sketch", "density": density(8)},
    "int8, 4 ×": {"algorithm": "dense", "wire": "int8"},
    "4bit, 7.5 ×": {"algorithm": "dense", "wire": "4bit"},
}


def cells(quick: bool) -> list[Cell]:
    found: list[Cell] = [{"part": "bytes", "kind": "measured", "ranks": trainings.RANKS}]
    if quick:
        return found + trainings.cells(WAYS, TASK, 40, (0.05,), 2)
    for way in WAYS:
        found += trainings.cells((way,), TASK, 240, RATES[way], 1)
        found += trainings.cells((way,), TASK, 240, (BEST[way],), 3)[1:]
    return found


def run(cell: Cell) -> Result:
    if cell["part"] == "bytes":
        calls = [{"list": call, "d": ELEMENTS} for call in CALLS.values()]
        found = counted(calls, cell["ranks"])
        return {name: each["bytes"] for name, each in zip(CALLS, found, strict=True)}
    if cell["part"] not in SKETCHED:
        return trainings.run(cell, PLAIN[CODED.get(cell["part"], cell["part"])])
    kind, compression = SKETCHED[cell["part"]]
    exchange = kind(density(compression), momentum=0.9)
    result = trainings.run(cell, Method(lambda: exchange, own_momentum=True))
    # Use the second half of the training, because the first gradients are large in few places.
    late = exchange.recalls[len(exchange.recalls) // 2 :]
    return {
        **result,
        "k": exchange.k,
        "recall": round(statistics.mean(exchange.recalls), 4),
        "late_recall": round(statistics.mean(late), 4),
    }


def recalls(records: Records, way: str, name: str) -> list[float]:
    """Return the recalls of all seeds at the best rate."""
    rate = trainings.best_rate(records, way)
    return [result[name] for cell, result in results(records, way) if cell["lr"] == rate]


def saved(records: Records) -> dict[str, float]:
    """Return how many times fewer bytes than dense."""
    ((_, sent),) = results(records, "bytes")
    return {name: sent["dense"] / sent[name] for name in CALLS}


def checks(records: Records) -> list[Check]:
    found, fewer = [], saved(records)
    for compression, most in ((4, 0.5), (8, 1.5)):
        way, stands_for = (f"{name}, {compression} ×" for name in ("sketch", "true top-k"))
        found += [
            Check(
                abs(fewer[way] / compression - 1) <= 0.02,
                f"at {compression} × a rank sends {fewer[way]:.2f} times less than dense.",
            ),
            Check(
                trainings.mean_behind(records, way) <= most,
                f"at {compression} × the sketch ends {trainings.said(records, way)}.",
            ),
            Check(
                trainings.mean_behind(records, way, stands_for) <= 0.5,
                f"that is {trainings.said(records, way, stands_for)}.",
            ),
            Check(
                statistics.mean(recalls(records, way, "recall")) >= 0.5,
                f"it delivers {mean_of(recalls(records, way, 'recall'), 3)} of the true top k.",
            ),
        ]
    return found


def fields(records: Records) -> dict[str, str]:
    fewer, rows = saved(records), []
    for way in WAYS:
        names = ("recall", "late_recall") if way in SKETCHED else ()
        found = [mean_of(recalls(records, way, name), 3) for name in names]
        rows.append(
            [
                *trainings.row(records, way),
                f"{fewer[way]:.2f} ×" if way in fewer else "as many",
                *(found or ["", ""]),
            ]
        )
    head = (*trainings.HEAD, "fewer bytes than dense", "recall", "second half")
    return {"scores": table(head, rows)}


def draw(records: Records, figure: Figure) -> None:
    trainings.draw(records, WAYS, figure)


SKETCHED_SGD = Entry("sketched-sgd", cells, run, checks, fields, draw)
