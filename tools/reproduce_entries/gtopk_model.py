"""Entry `gtopk-model`: gTop-k S-SGD's table, by its own link and with real exchanges."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from reproduce_entries import gtopk_exchanges as exchanges
from reproduce_entries.entry import Cell, Check, Entry, Records, Result, results
from reproduce_entries.page import COLOURS, table
from reproduce_entries.ranks import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALPHA, BETA = 0.436e-3, 9e-9  # seconds per message, and per byte
DENSITY = exchanges.DENSITY
RANKS = (4, 8, 16, 32)


class Model(NamedTuple):
    """Published figures: images per second and GPU, and seconds per iteration at P = 32."""

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
# No computing times are published for the LSTM.
LSTM = ((12.7, 8.7, 4.1, 2.1), (19.9, 18.6, 14.8, 5.4), (17.8, 17.6, 15.1, 10.8))


def costs(d: float, ranks: int, entry_bytes: float) -> dict[str, float]:
    """Return the seconds of one exchange by alpha and beta: the paper's methods and gtopk's.

    The paper's methods take 8 bytes per entry. tree: reduced to rank 0 and broadcast, as in the
    authors' code. butterfly: recursive doubling.
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
    model = {"part": "model", "kind": "replayed", **link, "list": size}
    return [model, *exchanges.cells(quick)]


def run(cell: Cell) -> Result:
    """Run exchanges, or count the bytes of a list and evaluate the costs."""
    if cell["part"] != "model":
        return exchanges.run(cell)
    d = cell["list"]["d"]
    (found,) = counted([{"list": {"density": DENSITY, "algorithm": "gtopk"}, "d": d}])
    entry_bytes = found["bytes"] / round(DENSITY * d)
    seconds = {
        name: {str(ranks): costs(model.parameters, ranks, entry_bytes) for ranks in RANKS}
        for name, model in MODELS.items()
    }
    return {"entry_bytes": entry_bytes, "seconds": seconds}


def speed(model: Model, seconds: float, compress: bool = True) -> float:
    """Return images per second and GPU, with an exchange of this length that nothing overlaps."""
    return model.batch / (model.compute + (model.compress if compress else 0) + seconds)


def model_of(records: Records) -> Result:
    return results(records, "model")[0][1]


def ways(records: Records, name: str, ranks: int) -> tuple[float, float] | None:
    """Return images per second by a dense ring at wire speed, and with real exchanges of lists."""
    seconds, model = exchanges.exchange_seconds(records, name, ranks), MODELS[name]
    if seconds is None:
        return None
    wire = exchanges.wire_speed(exchanges.SIZES[name], ranks)
    return speed(model, wire, False), speed(model, seconds)


def checks(records: Records) -> list[Check]:
    known = model_of(records)["seconds"]
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
    ratios = exchanges.over_link(records)
    for rate, said in exchanges.RATES.items():
        some = {where: ratio for where, ratio in ratios.items() if where[1] == rate}
        if some:
            found.append(
                Check(
                    max(some.values()) <= exchanges.LONGER,
                    f"at {said} lists take {min(some.values()):.2f} to {exchanges.worst(some)}, "
                    "as long as α and β of that link say.",
                )
            )
    slower = []
    for name in MODELS:
        for ranks in RANKS:
            both = ways(records, name, ranks)
            if both and both[1] <= both[0]:
                slower.append(f"{name} with {ranks}")
    if any(ways(records, name, RANKS[-1]) for name in MODELS):
        found.append(
            Check(
                not slower,
                "with exchanges that were run or virtual, gTop-k is no faster than a dense ring "
                f"at the speed of the wire in {len(slower)} of {len(MODELS) * len(RANKS)} cases"
                f"{': ' if slower else ''}{', '.join(slower)}.",
            )
        )
    return found


def longest(records: Records) -> dict[str, str]:
    """Return the model whose exchange takes the largest share, and that share in per cent."""
    shares = {}
    for name, model in MODELS.items():
        seconds = exchanges.exchange_seconds(records, name, RANKS[0])
        if seconds is not None:
            shares[name] = 100 * seconds / (model.compute + model.compress + seconds)
    name = max(shares, key=lambda each: shares[each], default="none")
    return {"longest": name, "share": f"{shares.get(name, 0):.1f}"}


def run_table(records: Records) -> str:
    """Return a table of images per second and GPU with real exchanges."""
    rows = []
    for name, model in MODELS.items():
        for at, ranks in enumerate(RANKS):
            both = ways(records, name, ranks)
            if both is None:
                continue
            dense = exchanges.found(records, "dense", model=name, ranks=ranks)
            own = min(dense["gtopk"], dense["gloo"]) if dense else None
            rows.append(
                (
                    f"{name}, {ranks}",
                    *(f"{each[at]:g}" for each in (model.dense, model.gtopk)),
                    "" if own is None else f"{speed(model, own, False):.3g}",
                    *(f"{each:.3g}" for each in both),
                    f"{model.gtopk[at] / model.dense[at]:.2f}",
                    f"{both[1] / model.dense[at]:.2f}",
                    "" if own is None else f"{both[1] / speed(model, own, False):.2f}",
                    f"{both[1] / both[0]:.2f}",
                )
            )
    head = ("model, P", "published: dense", "gTop-k", "ours: dense", "wire-speed dense", "gTop-k")
    over = ("published ×", "ours over their dense", "over our dense", "over wire speed")
    return table((*head, *over), rows)


def fields(records: Records) -> dict[str, str]:
    known, entry_bytes = (model_of(records)[name] for name in ("seconds", "entry_bytes"))
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
        "k": f"{DENSITY:g}",
        "run": run_table(records),
        "measured": exchanges.measured_table(records),
        **longest(records),
        "fitted": exchanges.fitted(records),
    }


def draw(records: Records, figure: Figure) -> None:
    known = model_of(records)["seconds"]
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
        run_too = [(ranks, ways(records, name, ranks)) for ranks in RANKS]
        points = [(ranks, both[1]) for ranks, both in run_too if both]
        if points:
            axes.plot(*zip(*points, strict=True), "x", color=COLOURS[3], label="gTop-k, run")
        axes.set_xscale("log", base=2)
        axes.set_xticks(RANKS, [str(ranks) for ranks in RANKS])
        axes.set_ylim(bottom=0)
        axes.set_title(name)
        axes.set_xlabel("ranks")
    figure.axes[0].set_ylabel("images/s and GPU\n(dotted: published)")
    figure.axes[0].legend(fontsize=7)


GTOPK_MODEL = Entry("gtopk-model", cells, run, checks, fields, draw)
