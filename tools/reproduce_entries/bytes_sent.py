"""Entry `bytes`: the volumes that papers publish, by their own arithmetic, beside gtopk's."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from reproduce_entries.entry import Cell, Check, Entry, Records, Result, results
from reproduce_entries.page import COLOURS, table
from reproduce_entries.ranks import Request, counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TILE = 4096
WITHIN = 0.5  # per cent of difference

# OLMo-1B: 16 layers, width 2,048, MLP 8,192, 50,304 tokens. The paper's 300 M is half of the bytes
# that it gives for AdamW in 16 bits, 636.9 MB.
PARAMETERS = {"300M": 318.45e6, "1B": 16 * (4 * 2048**2 + 3 * 2048 * 8192) + 50_304 * 2048}


class Sends(NamedTuple):
    """The published megabytes per step of DeMo, or of AdamW (k = 0)."""

    model: str
    k: int
    megabytes: float
    table: str


DEMO_ROWS = (
    Sends("300M", 8, 7.49, "v2"),
    Sends("300M", 1, 0.93, "v2"),
    Sends("1B", 0, 2416.6, "v2"),
    Sends("1B", 32, 110.32, "v1"),
    Sends("1B", 16, 55.16, "v2"),
    Sends("1B", 2, 6.89, "v2"),
)
STREAMING_ROWS = ((25, 441, 1.10), (100, 1767, 4.42), (250, 4418, 11.05))  # 1e9 tokens, TB, TB


class Round(NamedTuple):
    """A round of SparseLoCo's rule, and how long its exchange took as published."""

    model: str
    parameters: float
    peers: float
    seconds: float
    computing: float
    """Seconds between exchanges."""


ROUNDS = (
    Round("72B, 20 peers", 72e9, 20, 70, 20 * 60),
    Round("72B, 16.9 peers", 72e9, 16.9, 70, 20 * 60),
    Round("8B, 15 peers", 8e9, 15, 12, 4.5 * 60),
)
UP, DOWN = 110, 500  # millions per second, of bits or bytes
READINGS = {"Mbit/s": 1e6 / 8, "MB/s": 1e6}

LISTS = [(k, wire) for k in (1, 2, 8, 16, 32) for wire in ("bf16", "sign")]
LISTS += [(64, wire) for wire in ("lossless", "bf16", "4bit", "2bit", "sign")]
OUTERS: dict[str, Request] = {
    "sparseloco": {"preset": "sparseloco", "inner_steps": 2},
    "sparseloco, mean over participants": {
        "preset": "sparseloco",
        "inner_steps": 2,
        "mean": "participants",
    },
    "demo": {"preset": "demo"},
    "streaming-diloco": {"preset": "streaming-diloco", "inner_steps": 6},
    "diloco, int8": {"preset": "diloco", "inner_steps": 2, "wire": "int8", "error_decay": 1},
}


# Square matrices of four replicas, whose sides are multiples of a tile's; and elements of a single
# list, because a replica of this many parameters needs 2.7 GB.
NETS = ((64, 27), (1024, 10))
HUNDRED = 100 * 2**20
INNER = 30  # number of steps between rounds

# The parameters per entry, and the published bits per parameter and round.
SPARSE = (64, "0.219 (14 an entry), 0.313 (20)", "SparseLoCo, paper and code, as above")
PRESETS = {
    "sparseloco": SPARSE,
    "sparseloco, mean over participants": SPARSE,
    "demo": (128, "0.75 (96 an entry), k = 32", "DeMo's code, as above"),
    "streaming-diloco": (0, "4", "Streaming DiLoCo, as below"),
    "diloco, int8": (0, "8", "INTELLECT-1's report"),
}
VALUES = {
    "lossless": "32",
    "bf16": "16",
    "4bit": "4, and 0.25 of scale",
    "2bit": "2, and 0.25 of scales",
    "sign": "1, and 0.125 of scale",
}


def demo_megabytes(d: float, k: int) -> float:
    """Count 64-bit indices and 32-bit values for k of each 4,096; for k = 0, 16 bits per value."""
    return (d * k / TILE * (8 + 4) if k else 2 * d) / 1e6


def fewest_bits(k: int) -> float:
    """Return the fewest bits of an index if any k of 4,096 are equally likely."""
    return (math.lgamma(TILE + 1) - math.lgamma(k + 1) - math.lgamma(TILE - k + 1)) / (
        k * math.log(2)
    )


def link_seconds(entries: float, bits: float, peers: float, unit: float) -> tuple[float, float]:
    """Return the seconds to send the rank's own list, and to receive all others."""
    size = entries * bits / 8
    return size / (UP * unit), (peers - 1) * size / (DOWN * unit)


def cells(quick: bool) -> list[Cell]:
    # Small k need long vectors, because otherwise the message's header would count.
    lists = [
        {"k": k, "wire": wire, "d": TILE * max(256, 4096 // k)}
        for k, wire in (LISTS if not quick else LISTS[-2:])
    ]
    return [
        {"part": "published", "kind": "arithmetic"},
        {"part": "lists", "kind": "measured", "ranks": 2, "lists": lists},
        {"part": "rounds", "kind": "measured", "ranks": 2, "outer": OUTERS},
        *(
            {"part": "four", "kind": "measured", "ranks": 4, "side": side, "matrices": matrices}
            for side, matrices in (NETS if not quick else NETS[:1])
        ),
        *(
            {"part": "four", "kind": "measured", "ranks": 4, "d": each}
            for each in ([HUNDRED] if not quick else [])
        ),
    ]


def run(cell: Cell) -> Result:
    if cell["part"] == "lists":
        fixed = {"algorithm": "topk", "select": "block"}
        asked = [
            {"list": {"density": each["k"] / TILE, "wire": each["wire"], **fixed}, "d": each["d"]}
            for each in cell["lists"]
        ]
        found = counted(asked)
        rows = zip(cell["lists"], found, strict=True)
        return {"rows": [{**each, "bytes": count["bytes"]} for each, count in rows]}
    if cell["part"] == "rounds":
        found = counted([{"outer": each} for each in cell["outer"].values()])
        return dict(zip(cell["outer"], found, strict=True))
    if cell["part"] == "four":
        if "d" in cell:
            over = {"algorithm": "topk", "select": "block", "wire": "2bit", "density": 64 / TILE}
            request: Request = {"list": over, "d": cell["d"]}
        else:
            net = {"side": cell["side"], "matrices": cell["matrices"], "rounds": 1}
            request = {"outer": OUTERS["sparseloco"], **net}
        return counted([request], cell["ranks"])[0]
    return {
        "demo": [
            {**row._asdict(), "formula": demo_megabytes(PARAMETERS[row.model], row.k)}
            for row in DEMO_ROWS
        ],
        "rounds": [
            {
                **row._asdict(),
                "reading": reading,
                "up": link_seconds(row.parameters / 64, 14, row.peers, unit)[0],
                "down": link_seconds(row.parameters / 64, 14, row.peers, unit)[1],
            }
            for row in ROUNDS
            for reading, unit in READINGS.items()
        ],
    }


def bits_of(records: Records) -> dict[tuple[int, str], float]:
    """Return the measured bits per entry, by k and wire."""
    ((_, found),) = results(records, "lists")
    return {
        (row["k"], row["wire"]): 8 * row["bytes"] / (row["d"] / TILE * row["k"])
        for row in found["rows"]
    }


def bits_a_parameter(records: Records) -> dict[str, float]:
    """Return the measured bits per parameter and round of each preset."""
    ((_, found),) = results(records, "rounds")
    return {name: 8 * each["bytes"] / each["elements"] for name, each in found.items()}


def times_fewer(found: Result) -> float:
    """Return how many times fewer bytes than averaging the gradients of all a round's steps."""
    return float(INNER * 2 * 3 / 4 * 4 * found["elements"] / found["bytes"])


def difference(row: dict[str, Any]) -> float:
    """Return the difference of DeMo's formula from the published figure, in per cent."""
    return 100 * float(row["formula"] / row["megabytes"] - 1)


def checks(records: Records) -> list[Check]:
    ((_, found),) = results(records, "published")
    bits, preset = bits_of(records), 64 * bits_a_parameter(records)["sparseloco"]
    off = [difference(row) for row in found["demo"]]
    fits = [each for each in off if abs(each) <= WITHIN]
    saved = [abs(dense / 400 / said - 1) <= WITHIN / 100 for _, dense, said in STREAMING_ROWS]
    usual = [row for row in found["rounds"] if row["peers"] != 20]  # the largest number of peers
    fewest = min(times_fewer(each) for _, each in results(records, "four"))
    misses = {row["reading"] for row in usual if max(row["up"], row["down"]) > row["seconds"]}
    return [
        Check(
            len(fits) == len(off),
            f"{len(fits)} of {len(off)} figures of DeMo follow within {WITHIN} %; the largest "
            f"difference is {max(off, key=abs):+.1f} %.",
        ),
        Check(all(saved), f"{sum(saved)} of {len(saved)} figures of Streaming DiLoCo follow."),
        Check(
            bits[64, "2bit"] < 14,
            f"an entry of our list takes {bits[64, '2bit']:.2f} bits as `2bit` and "
            f"{bits[64, 'sign']:.2f} as `sign`.",
        ),
        Check(
            preset < 14,
            f"with `sparseloco`, agreement and headers included, one takes {preset:.2f} bits.",
        ),
        Check(
            fewest >= 2000,
            f"each of four replicas of `sparseloco` sends at least {fewest:,.0f} times fewer bytes "
            f"in a round than {INNER} dense steps take.",
        ),
        *(
            Check(
                reading not in misses,
                f"Covenant-72B's exchanges {'do not fit' if reading in misses else 'fit'} the link "
                f"read as {reading}, with the mean number of peers.",
            )
            for reading in READINGS
        ),
    ]


def fields(records: Records) -> dict[str, str]:
    ((_, found),) = results(records, "published")
    bits, presets = bits_of(records), bits_a_parameter(records)
    saved = 100 * 16 / presets["streaming-diloco"]

    def ours(row: dict[str, Any], wire: str) -> str:
        entries = PARAMETERS[row["model"]] * row["k"] / TILE
        known = bits.get((row["k"], wire))
        return f"{entries * known / 8e6:.3g}" if known else ""

    demo = [
        (
            f"{row['model']}, {'k = ' + str(row['k']) if row['k'] else 'AdamW'} ({row['table']})",
            *(f"{row['megabytes']:g}", f"{row['formula']:.2f}", f"{difference(row):+.2f}"),
            *(ours(row, wire) for wire in ("bf16", "sign")),
        )
        for row in found["demo"]
    ]
    entries = [("SparseLoCo, the paper", "14", "2"), ("SparseLoCo, the code", "20", "8")]
    entries += [
        (f"ours, `{wire}`", f"{bits[64, wire]:.2f}", value)
        for wire, value in VALUES.items()
        if (64, wire) in bits
    ]
    rounds = [
        (name, f"{presets[name]:.3f}", f"{presets[name] * per:.2f}" if per else "", said, source)
        for name, (per, said, source) in PRESETS.items()
    ]
    streaming = [
        (str(tokens), str(dense), f"{said:.2f}", f"{dense / 400:.2f}", f"{dense / saved:.2f}")
        for tokens, dense, said in STREAMING_ROWS
    ]
    return {
        "fewest": f"{fewest_bits(64):.2f}",
        "saved": f"{saved:.0f}",
        "demo": table(
            ("model", "published", "arithmetic", "difference, %", "ours `bf16`", "ours `sign`"),
            demo,
        ),
        "entries": table(("", "bits", "of it the value"), entries),
        "presets": table(("preset", "ours", "per entry", "published", "source"), rounds),
        "four": table(
            ("parameters", "bytes of a round", "bits per parameter", "times fewer than dense"),
            [
                (
                    f"{each['elements']:,}{', lists alone' if 'd' in cell else ''}",
                    f"{each['bytes']:,.0f}",
                    f"{8 * each['bytes'] / each['elements']:.3f}",
                    f"{times_fewer(each):,.0f}",
                )
                for cell, each in results(records, "four")
            ],
        ),
        "streaming": table(
            ("1e9 tokens", "data parallel", "published", "÷ 400", f"ours, ÷ {saved:.0f}"),
            streaming,
        ),
        "rounds": table(
            ("model", "link", "up", "down", "published", "ours `2bit`, up", "down", "busy, %"),
            [_round(row, bits[64, "2bit"]) for row in found["rounds"]],
        ),
    }


def _round(row: dict[str, Any], bits: float) -> tuple[str, ...]:
    up, down = link_seconds(row["parameters"] / 64, bits, row["peers"], READINGS[row["reading"]])
    busy = 100 * row["computing"] / (row["computing"] + max(up, down))
    theirs = f"{row['up']:.0f}", f"{row['down']:.0f}", f"{row['seconds']:.0f}"
    return (row["model"], row["reading"], *theirs, f"{up:.0f}", f"{down:.0f}", f"{busy:.1f}")


def draw(records: Records, figure: Figure) -> None:
    bits = bits_of(records)
    axes = figure.subplots()
    names = [("paper", 14.0), ("code", 20.0)]
    names += [(f"ours,\n{wire}", of) for (k, wire), of in bits.items() if k == 64]
    presets = bits_a_parameter(records)
    names += [("our preset", presets["sparseloco"] * 64)]
    for i, (name, of) in enumerate(names):
        axes.bar(name, of, color=COLOURS[0 if i > 1 else 1])
        axes.annotate(f"{of:.1f}", (i, of), ha="center", va="bottom")
    axes.axhline(fewest_bits(64), color=COLOURS[3], linestyle="--")
    axes.margins(y=0.1)
    axes.set_ylabel("bits of an entry, 64 of 4,096")
    axes.set_title("dashed: the fewest that an index alone can take")


BYTES = Entry("bytes", cells, run, checks, fields, draw)
