"""Entry `gtopk-model`: gTop-k S-SGD's table, by its own link, cost formulas and computing times."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from reproduce_entries.entry import Cell, Check, Entry, Records, Result
from reproduce_entries.page import COLOURS, table
from reproduce_entries.ranks import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALPHA, BETA = 0.436e-3, 9e-9  # seconds a message, and a byte
DENSITY = 0.001
RANKS = (4, 8, 16, 32)


class Model(NamedTuple):
    """Published: images a second and GPU; seconds an iteration at P = 32."""

    parameters: float
    batch: int
    dense: tuple[float, ...]
    topk: tuple[float, ...]
    gtopk: tuple[float, ...]
    compute: float
    compress: float
    communicate: float


MODELS = {
    "VGG-16": Model(
        *(14.7e6, 128, (104, 92.6, 39.5, 12.6), (110.6, 109.9, 97.9, 63.0)),
        *((131.1, 130.6, 126.4, 123.2), 0.140, 0.091, 0.812),
    ),
    "ResNet-20": Model(
        *(0.272e6, 128, (821.7, 705.2, 520.4, 287.9), (908.8, 753.0, 737.6, 696.0)),
        *((916.3, 868.7, 808.5, 789.3), 0.146, 0.0016, 0.0247),
    ),
    "AlexNet": Model(
        *(61.1e6, 64, (14.0, 12.1, 4.94, 1.23), (14.2, 13.9, 13.4, 9.24)),
        *((16.5, 16.4, 16.4, 15.8), 0.257, 0.384, 3.363),
    ),
    "ResNet-50": Model(
        *(25.6e6, 256, (39.0, 37.0, 23.2, 10.7), (37.7, 35.7, 34.5, 30.6)),
        *((39.8, 39.7, 39.1, 39.1), 4.882, 0.154, 1.424),
    ),
}
# No times of computing are published for it.
LSTM = ((12.7, 8.7, 4.1, 2.1), (19.9, 18.6, 14.8, 5.4), (17.8, 17.6, 15.1, 10.8))


def costs(d: float, ranks: int, entry_bytes: float) -> dict[str, float]:
    """Seconds of one exchange by alpha and beta: the paper's methods, 8 bytes an entry, and ours.

    tree: reduced to rank 0 and broadcast, as their code does. butterfly: recursive doubling.
    """
    k, rounds = DENSITY * d, math.log2(ranks)
    return {
        "dense": 2 * (ranks - 1) * ALPHA + 2 * (ranks - 1) / ranks * 4 * d * BETA,
        "topk": rounds * ALPHA + (ranks - 1) * 8 * k * BETA,
        "tree": 2 * rounds * (ALPHA + 8 * k * BETA),
        "butterfly": rounds * (ALPHA + 8 * k * BETA),
        "ours": rounds * (ALPHA + entry_bytes * k * BETA),
    }


def cells(quick: bool) -> list[Cell]:
    size = {"ranks": 2, "d": 2**20 if quick else 2**24}
    link = {"alpha": ALPHA, "beta": BETA, "density": DENSITY}
    return [{"part": "model", "kind": "replayed", **link, "list": size}]


def run(cell: Cell) -> Result:
    """Counts the bytes of a list, then evaluates the costs."""
    d = cell["list"]["d"]
    (found,) = counted([{"list": {"density": DENSITY, "algorithm": "gtopk"}, "d": d}])
    entry_bytes = found["bytes"] / round(DENSITY * d)
    seconds = {
        name: {str(ranks): costs(model.parameters, ranks, entry_bytes) for ranks in RANKS}
        for name, model in MODELS.items()
    }
    return {"entry_bytes": entry_bytes, "seconds": seconds}


def speed(model: Model, seconds: float, compress: bool = True) -> float:
    """Images a second and GPU, with so long an exchange that nothing overlaps."""
    return model.batch / (model.compute + (model.compress if compress else 0) + seconds)


def checks(records: Records) -> list[Check]:
    known = records[0].result["seconds"]
    found = []
    for name, model in MODELS.items():
        cost = known[name]["32"]
        ring, ours = speed(model, cost["dense"], False), speed(model, cost["ours"])
        published = model.gtopk[-1] / model.dense[-1]
        found.append(
            Check(
                ours / ring >= 0.9 * published,
                f"{name}: {published:.1f} times dense published, {ours / ring:.1f} replayed. The "
                f"published dense is {ring / model.dense[-1]:.1f} times slower than the ring, and "
                f"gTop-k's exchange took {model.communicate / cost['tree']:.0f} times what α and β "
                "say.",
            )
        )
    return found


def fields(records: Records) -> dict[str, str]:
    known, entry_bytes = records[0].result["seconds"], records[0].result["entry_bytes"]
    speeds, times = [], []
    for name, model in MODELS.items():
        for at, ranks in enumerate(RANKS):
            cost = known[name][str(ranks)]
            ring, ours = speed(model, cost["dense"], False), speed(model, cost["ours"])
            speeds.append(
                (
                    f"{name}, {ranks}",
                    *(f"{each[at]:g}" for each in (model.dense, model.topk, model.gtopk)),
                    *(
                        f"{each:.3g}"
                        for each in (ring, speed(model, cost["topk"]), speed(model, cost["tree"]))
                    ),
                    f"{ours:.3g}",
                    f"{model.gtopk[at] / model.dense[at]:.2f}",
                    f"{ours / ring:.2f}",
                )
            )
        cost = known[name]["32"]
        times.append(
            (
                name,
                *(f"{1e3 * each:.3g}" for each in (model.compute, model.compress)),
                f"{1e3 * model.communicate:.4g}",
                *(f"{1e3 * cost[each]:.3g}" for each in ("tree", "butterfly", "ours", "topk")),
                f"{1e3 * cost['dense']:.4g}",
                f"{model.communicate / cost['tree']:.1f}",
            )
        )
    loses = [f"{LSTM[2][at] / LSTM[1][at]:.2f} at {ranks}" for at, ranks in enumerate(RANKS)]
    return {
        "entry_bytes": f"{entry_bytes:.2f}",
        "speeds": table(
            (
                *("model, P", "published: dense", "Top-k", "gTop-k"),
                *("replayed: dense", "Top-k", "tree", "ours", "published ×", "replayed ×"),
            ),
            speeds,
        ),
        "times": table(
            (
                *("model", "compute", "compress", "gTop-k published", "tree", "butterfly"),
                *("ours", "Top-k", "dense ring", "published over tree"),
            ),
            times,
        ),
        "lstm": ", ".join(loses),
    }


def draw(records: Records, figure: Figure) -> None:
    known = records[0].result["seconds"]
    for axes, (name, model) in zip(figure.subplots(1, 4), MODELS.items(), strict=True):
        for i, (label, said, cost, compress) in enumerate(
            (
                ("dense", model.dense, "dense", False),
                ("Top-k", model.topk, "topk", True),
                ("gTop-k", model.gtopk, "ours", True),
            )
        ):
            replayed = [speed(model, known[name][str(ranks)][cost], compress) for ranks in RANKS]
            axes.plot(RANKS, said, "o:", color=COLOURS[i], markersize=3)
            axes.plot(RANKS, replayed, "-", color=COLOURS[i], label=label)
        axes.set_xscale("log", base=2)
        axes.set_xticks(RANKS, [str(ranks) for ranks in RANKS])
        axes.set_ylim(bottom=0)
        axes.set_title(name)
        axes.set_xlabel("ranks")
    figure.axes[0].set_ylabel("images/s and GPU\n(dotted: published)")
    figure.axes[0].legend(fontsize=7)


GTOPK_MODEL = Entry("gtopk-model", cells, run, checks, fields, draw)
