"""Entry `outer-loss`: outer optimizers against dense training, with AdamW and equal tokens."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from reproduce_entries import ROOT
from reproduce_entries.entry import Cell, Check, Entry, Records, Result
from reproduce_entries.page import COLOURS, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PROGRAM = ROOT / "examples" / "outer" / "train.py"
RANKS = 4
DENSE, DILOCO, SPARSELOCO = "dense", "diloco, H = 30", "sparseloco, H = 30"
MAIN: dict[str, dict[str, Any]] = {
    DENSE: {"preset": "dense"},
    DILOCO: {"preset": "diloco", "inner_steps": 30},
    SPARSELOCO: {"preset": "sparseloco", "inner_steps": 30},
}
# Each variant runs at the best rate of the method whose name begins alike, with the first seed.
VARIANTS: dict[str, dict[str, Any]] = {
    "diloco, H = 10": {"preset": "diloco", "inner_steps": 10},
    "diloco, H = 100": {"preset": "diloco", "inner_steps": 100},
    "sparseloco, H = 10": {"preset": "sparseloco", "inner_steps": 10},
    "sparseloco, participants": {"preset": "sparseloco", "mean": "participants"},
    "sparseloco, no feedback": {"preset": "sparseloco", "error_decay": 0.0},
}
# These are the rates of the first seed's runs, and the best one, which all other runs use.
RATES = {
    DENSE: (4e-3, 8e-3, 1.6e-2),
    DILOCO: (2e-3, 4e-3, 8e-3, 1.6e-2),
    SPARSELOCO: (2e-3, 4e-3, 8e-3, 1.6e-2),
}
BEST = {DENSE: 8e-3, DILOCO: 4e-3, SPARSELOCO: 4e-3}
# Lists now take fewer bytes than when most cells ran. This cell has two rounds after its dense
# start.
COUNTED = "sparseloco, H = 30, short"


def cells(quick: bool) -> list[Cell]:
    shared = {"kind": "measured", "task": "gpt-0.1m", "steps": 60 if quick else 3000}
    if quick:
        return [{"part": name, **shared, "lr": BEST[name], "seed": 0} for name in MAIN]
    found = [{"part": name, **shared, "lr": lr, "seed": 0} for name in MAIN for lr in RATES[name]]
    found += [
        {"part": name, **shared, "lr": BEST[name], "seed": seed} for seed in (1, 2) for name in MAIN
    ]
    found += [{"part": name, **shared, "lr": rate_of(name), "seed": 0} for name in VARIANTS]
    return [*found, {**shared, "part": COUNTED, "steps": 75, "lr": BEST[SPARSELOCO], "seed": 0}]


def rate_of(part: str) -> float:
    """Return the best rate of the method; for a variant, its base's."""
    if part in BEST:
        return BEST[part]
    return BEST[DILOCO if part.startswith("diloco") else SPARSELOCO]


def run(cell: Cell) -> Result:
    """Train with four processes over loopback, using examples/outer/train.py."""
    given = {"steps": cell["steps"], "seed": cell["seed"], "size": cell["task"]}
    settings = MAIN | VARIANTS | {COUNTED: MAIN[SPARSELOCO]}
    given |= {"inner_lr": cell["lr"], **settings[cell["part"]]}
    options = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS))
    done = subprocess.run(
        [sys.executable, *launch, str(PROGRAM), *options],
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    report = json.loads(done.stdout.splitlines()[-1])
    dense = cell["part"] == DENSE
    steps = cell["steps"] - (0 if dense else report["dense_steps"])
    return {
        "loss": report["held_out_loss"],
        "parameters": report["parameters"],
        "bytes_a_step": report["megabytes_after_the_start"] * 1e6 / steps,
        "points": [[step, round(loss, 4)] for step, loss, _ in report["points"]],
    }


def losses(records: Records, part: str) -> dict[tuple[float, int], float]:
    """Return the losses by learning rate and seed."""
    return {
        (each.cell["lr"], each.cell["seed"]): each.result["loss"]
        for each in records
        if each.cell["part"] == part
    }


def behind(records: Records, part: str) -> list[float]:
    """Return per cent behind dense with the same seed, each at its rate."""
    dense, own = losses(records, DENSE), losses(records, part)
    seeds = sorted({seed for _, seed in own})
    return [100 * (own[BEST[part], s] / dense[BEST[DENSE], s] - 1) for s in seeds]


def saved(records: Records, part: str) -> float:
    """Return how many times fewer bytes than dense, per step after the dense start."""
    found = {each.cell["part"]: each.result["bytes_a_step"] for each in records}
    return float(found[DENSE] / found[part])


def first_seed(records: Records, part: str) -> float:
    return losses(records, part)[rate_of(part), 0]


def checks(records: Records) -> list[Check]:
    found = []
    for part, fewest in ((DILOCO, 25), (SPARSELOCO, 2000)):
        worse = behind(records, part)
        times = saved(records, part)
        as_trained = ""
        if part == SPARSELOCO and any(each.cell["part"] == COUNTED for each in records):
            as_trained = f" ({times:,.0f} times when the cells ran)"
            times = saved(records, COUNTED)
        found.append(
            Check(
                statistics.mean(worse) <= 2 and times >= fewest,
                f"{part}: {statistics.mean(worse):+.2f} % from dense's loss "
                f"({', '.join(f'{each:+.2f}' for each in worse)}), "
                f"with {times:,.0f} times fewer bytes{as_trained}.",
            )
        )
    if {each.cell["part"] for each in records} >= VARIANTS.keys():
        found += orders(records)
    return found


def orders(records: Records) -> list[Check]:
    """Check the order that the papers report, on one seed."""
    loss = {part: first_seed(records, part) for part in (*MAIN, *VARIANTS)}
    ten, thirty, hundred = (loss[f"diloco, H = {h}"] for h in (10, 30, 100))
    whole = loss[SPARSELOCO]
    return [
        Check(
            ten < thirty < hundred,
            f"diloco ends at {ten:.3f} with H = 10, {thirty:.3f} with 30, {hundred:.3f} with 100.",
        ),
        Check(
            loss["sparseloco, H = 10"] < whole,
            f"sparseloco ends at {loss['sparseloco, H = 10']:.3f} with H = 10, "
            f"{whole:.3f} with 30.",
        ),
        Check(
            whole < loss["sparseloco, participants"],
            f"sparseloco ends at {whole:.3f} with the mean over contributors, "
            f"{loss['sparseloco, participants']:.3f} with the mean over participants.",
        ),
        Check(
            whole < loss["sparseloco, no feedback"],
            f"sparseloco ends at {whole:.3f} with error feedback, "
            f"{loss['sparseloco, no feedback']:.3f} without.",
        ),
    ]


def fields(records: Records) -> dict[str, str]:
    rows = []
    for part in (*MAIN, *VARIANTS):
        own = losses(records, part)
        if not own:
            continue
        rate = rate_of(part)
        at_rate = [loss for (lr, _), loss in own.items() if lr == rate]
        shown = ", ".join(f"{each:.3f}" for each in at_rate)
        rows.append((part, f"{rate:g}", shown, f"{saved(records, part):,.0f} ×"))
    rates, tried = [], sorted({lr for some in RATES.values() for lr in some})
    for part in MAIN:
        by_rate = {lr: loss for (lr, seed), loss in losses(records, part).items() if seed == 0}
        shown = {lr: f"{loss:.3f}" for lr, loss in by_rate.items()}
        best = min(by_rate, key=lambda lr: by_rate[lr])
        shown[best] = f"**{shown[best]}**"
        rates.append((part, *(shown.get(lr, "") for lr in tried)))
    return {
        "losses": table(("method", "rate", "loss of each seed", "fewer bytes than dense"), rows),
        "rates": table(("method", *(f"{lr:g}" for lr in tried)), rates),
    }


def draw(records: Records, figure: Figure) -> None:
    axes = figure.subplots()
    for colour, part in zip(COLOURS, MAIN, strict=False):
        for each in records:
            if each.cell["part"] == part and each.cell["lr"] == BEST[part]:
                steps, points = zip(*each.result["points"], strict=True)
                label = part if each.cell["seed"] == 0 else None
                axes.plot(steps, points, color=colour, linewidth=1, label=label)
    axes.set_ylim(top=2.6)
    axes.set_xlabel("inner steps (a line for each seed)")
    axes.set_ylabel("loss, nats a character")
    axes.legend(fontsize=7)


OUTER_LOSS = Entry("outer-loss", cells, run, checks, fields, draw)
