"""Entry `equal-budgets`: the loss at equal bytes and at equal time, beside the best of dense."""

from __future__ import annotations

import functools
import math
import statistics
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from records import read
from simulate import train
from simulated import method_of
from table import mean_of
from tasks import TASKS

from reproduce_entries import ROOT
from reproduce_entries.entry import Cell, Check, Entry, Records, Result, results
from reproduce_entries.page import COLOURS, table
from reproduce_entries.steps import MOST_BUSY, timed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RANKS = 4
RATES = {"100mbit": "100 Mbit/s", "1gbit": "1 Gbit/s"}
PACE = 60.0  # nanoseconds of backward per parameter; the forward takes half of it
DENSE, BF16 = "dense", "bf16"
BY_BYTES = "bytes"
# In each group, all ways take turns within the same run.
GROUPS: dict[str, tuple[float, tuple[str, ...]]] = {
    "coded": (0.05, ("gloo", "dense", "bf16", "int8", "4bit", "topk")),
    "gtopk": (0.01, ("dense", "default unit")),
}


class Way(NamedTuple):
    """A method, and its name in tools/bench/ways.py."""

    method: str
    density: float | None = None
    timed: str | None = None
    group: str = "coded"

    @property
    def name(self) -> str:
        return self.method if self.density is None else f"{self.method}@{self.density:g}"


class Net(NamedTuple):
    """A net. steps: of compressed trainings. shorter: steps and rates of dense ones beside them."""

    steps: int
    shorter: dict[int, tuple[float, ...]]
    recorded: str
    ways: tuple[Way, ...]
    rates_of: dict[str, tuple[float, ...]]
    """Of those ways that run here."""


CODED = (Way("int8", timed="int8"), Way("4bit", timed="4bit"))
NETS = {
    "gpt-0.8m": Net(
        600,
        {81: (4e-3, 8e-3, 1.6e-2), 154: (2e-3, 4e-3, 8e-3, 1.6e-2), 305: (4e-3,)},
        "adamw-0.8m",
        CODED,
        {},
    ),
    "gpt-0.1m": Net(
        300,
        dict.fromkeys((34, 77, 150), (8e-3, 1.6e-2, 3.2e-2)),
        "adamw-0.1m",
        (
            *CODED,
            Way("topk", 0.05, "topk"),
            Way("gtopk", 0.01, "default unit", "gtopk"),
            Way("after-adamw"),
        ),
        {
            "topk@0.05": (8e-3,),
            "gtopk@0.01": (8e-3, 1.6e-2),
            "after-adamw": (8e-3,),
        },
    ),
}


def training(task: str, method: str, steps: int, lr: float, seed: int) -> Cell:
    name, _, density = method.partition("@")
    cell = {"part": "training", "kind": "simulated", "task": task, "ranks": RANKS, "steps": steps}
    return {**cell, "method": name, "density": float(density or 0) or None, "lr": lr, "seed": seed}


def cells(quick: bool) -> list[Cell]:
    if quick:
        shared = {"part": "steps", "kind": "measured", "task": "gpt-0.1m", "rate": "100mbit"}
        link = {**shared, "group": "coded", "hosts": 2, "turns": 2, "pace": PACE}
        return [link, *(training("gpt-0.1m", DENSE, n, 1.6e-2, 0) for n in (7, 34))]
    found: list[Cell] = []
    for task, net in NETS.items():
        found.append({"part": "computing", "kind": "measured", "task": task, "steps": 40})
        for rate in RATES:
            for group in dict.fromkeys(each.group for each in net.ways):
                link = {"part": "steps", "kind": "measured", "task": task, "rate": rate}
                # There are enough turns that starting the ranks is a small part of the run.
                turns = 9 if task == "gpt-0.8m" else 99
                found.append({**link, "group": group, "hosts": RANKS, "turns": turns, "pace": PACE})
    for task, net in NETS.items():
        for steps, rates in net.shorter.items():
            found += [training(task, DENSE, steps, lr, 0) for lr in rates]
        for name, rates in net.rates_of.items():
            found += [training(task, name, net.steps, lr, 0) for lr in rates]
    return found


def run(cell: Cell) -> Result:
    """Run one cell; links need root."""
    torch.set_num_threads(1)
    if cell["part"] == "steps":
        density, ways = GROUPS[cell["group"]]
        options = ["--net", f"paced-{cell['task']}", "--pace", str(cell["pace"])]
        options += ["--density", str(density), "--bucket", "1"]
        return timed(ways, cell["hosts"], cell["rate"], cell["turns"], *options)
    if cell["part"] == "computing":
        return {"seconds": computing(cell["task"], cell["steps"])}
    ranks = range(cell["ranks"])
    tasks = [TASKS[cell["task"]](rank, len(ranks), "alike", cell["seed"]) for rank in ranks]
    method = method_of(cell["method"], cell["density"])
    record = train({"steps": cell["steps"], "lr": cell["lr"]}, tasks, method)
    points = [[each["step"], round(each["score"], 4)] for each in record["points"]]
    sent = record["points"][-1]["bytes"]
    return {
        "loss": points[-1][1],
        "bytes": sent,
        "parameters": record["parameters"],
        "points": points,
    }


def computing(task: str, steps: int) -> float:
    """Return the median seconds of a rank's step on one core, without any exchange."""
    own = TASKS[task](0, RANKS, "alike", 0)
    optimizer, _ = own.recipe.optimizer(own.model.parameters(), own.lr, steps)
    seconds = []
    for _ in range(steps):
        inputs, targets = own.batch()
        began = time.perf_counter()
        optimizer.zero_grad()
        own.loss(own.model(inputs), targets).backward()
        own.recipe.clip_(own.model.parameters())
        optimizer.step()
        seconds.append(time.perf_counter() - began)
    return round(statistics.median(seconds), 6)


class Run(NamedTuple):
    """A whole training."""

    steps: int
    lr: float
    seed: int
    loss: float
    bytes: float
    """For each parameter."""


@functools.cache
def recorded(name: str) -> tuple[tuple[str, Run], ...]:
    """Return the runs recorded in docs/results/adamw.md."""
    found = []
    for each in read(ROOT / "docs" / "results" / "records" / f"{name}.jsonl"):
        last = each["points"][-1]
        sent = last["bytes"] / each["parameters"]
        run_of = Run(each["steps"], each["lr"], each["seed"], last["score"], sent)
        found.append((each["method"], run_of))
    return tuple(found)


def runs(records: Records, task: str, method: str) -> list[Run]:
    """Return the runs that are recorded there and here."""
    found = [each for name, each in recorded(NETS[task].recorded) if name == method]
    for cell, result in results(records, "training"):
        named = method_of_cell(cell)
        if cell["task"] == task and named == method:
            sent = result["bytes"] / result["parameters"]
            found.append(Run(cell["steps"], cell["lr"], cell["seed"], result["loss"], sent))
    return found


def method_of_cell(cell: Cell) -> str:
    return cell["method"] if cell["density"] is None else f"{cell['method']}@{cell['density']:g}"


def best(records: Records, task: str, method: str, steps: int) -> dict[int, Run]:
    """Return the runs by seed, at the rate that is best on the first seed."""
    some = [each for each in runs(records, task, method) if each.steps == steps]
    lr = min((each for each in some if each.seed == 0), key=lambda each: each.loss).lr
    return {each.seed: each for each in some if each.lr == lr}


def dense_losses(records: Records, task: str, steps: float) -> dict[int, float]:
    """Return dense losses by seed after this many steps, interpolated by log steps between runs."""
    run_too = sorted({each.steps for each in runs(records, task, DENSE)})
    steps = min(max(steps, run_too[0]), run_too[-1])
    after = next(each for each in run_too if each >= steps)
    before = max(each for each in run_too if each <= steps)
    one, other = best(records, task, DENSE, before), best(records, task, DENSE, after)
    part = math.log(steps / before) / math.log(after / before) if after > before else 0.0
    return {
        seed: (1 - part) * one[seed].loss + part * other[seed].loss
        for seed in sorted(one.keys() & other.keys())
    }


def step_seconds(records: Records, task: str, rate: str, way: str, group: str = "coded") -> float:
    """Return the median seconds of the slowest rank's step."""
    for cell, result in results(records, "steps"):
        if (cell["task"], cell["rate"], cell["group"]) == (task, rate, group):
            return float(result["ways"][way][0]) / 1e3
    raise LookupError(f"no steps of {task} at {rate}")


def dense_seconds(records: Records, task: str, rate: str) -> float:
    """Return the seconds of a float32 step by the faster of gloo and gtopk."""
    return min(step_seconds(records, task, rate, way) for way in ("gloo", "dense"))


class Beside(NamedTuple):
    """A method, and the loss that dense training reaches within its budget."""

    losses: dict[int, float]
    budget: float
    """MB that a rank sends, or seconds."""
    steps: dict[str, float]
    """Of dense in float32 and bfloat16."""
    apart: dict[str, list[float]]
    """Per cent by which the method's loss is above theirs, seed by seed."""


def beside(records: Records, task: str, way: Way, view: str) -> Beside:
    """Compare a method with dense. view: BY_BYTES or a rate."""
    net = NETS[task]
    own = best(records, task, way.name, net.steps)
    dense = best(records, task, DENSE, net.steps)
    sent = statistics.mean(each.bytes for each in own.values())
    if view == BY_BYTES:
        whole = dense[0].bytes / net.steps
        budget, each_step = sent, {DENSE: whole, BF16: whole / 2}
    else:
        assert way.timed
        each_step = {
            DENSE: dense_seconds(records, task, view),
            BF16: step_seconds(records, task, view, "bf16"),
        }
        warm = round(0.1 * net.steps) if way.density else 0
        own_step = step_seconds(records, task, view, way.timed, way.group)
        budget = warm * each_step[DENSE] + (net.steps - warm) * own_step
    steps = {name: budget / cost for name, cost in each_step.items()}
    losses = {seed: each.loss for seed, each in own.items()}
    apart = {}
    for name, count in steps.items():
        theirs = dense_losses(records, task, count)
        both = sorted(losses.keys() & theirs.keys())
        apart[name] = [100 * (losses[seed] / theirs[seed] - 1) for seed in both]
    return Beside(losses, budget, steps, apart)


def views(way: Way) -> list[str]:
    return [BY_BYTES, *(RATES if way.timed else ())]


def has_all(records: Records) -> bool:
    """Return whether all records exist, which is not the case in a quick run."""
    return any(each.cell["part"] == "computing" for each in records)


def counts(records: Records, task: str, rate: str, group: str) -> bool:
    """Whether a fifth of the cores was idle while these steps were timed."""
    return all(
        result["busy"] <= MOST_BUSY
        for cell, result in results(records, "steps")
        if (cell["task"], cell["rate"], cell["group"]) == (task, rate, group)
    )


def checks(records: Records) -> list[Check]:
    if not has_all(records):
        return []
    found = []
    for task, net in NETS.items():
        for way in net.ways:
            for view in views(way):
                if view != BY_BYTES and not counts(records, task, view, way.group):
                    continue
                budget = "with as many bytes"
                if view != BY_BYTES:
                    budget = f"in as much time at {RATES[view]}"
                its = beside(records, task, way, view)
                name = max(its.apart, key=lambda each: statistics.mean(its.apart[each]))
                apart = statistics.mean(its.apart[name])
                said = (
                    f"{task}: {way.name} ends {apart:+.1f} % from dense in "
                    f"{'float32' if name == DENSE else 'bfloat16'} {budget}."
                )
                found.append(Check(apart < 0, said))
    return found


def budgets(records: Records, view: str) -> str:
    rows = []
    for task, net in NETS.items():
        for way in net.ways:
            if view not in views(way):
                continue
            its = beside(records, task, way, view)
            parameters = parameters_of(records, task)
            budget = its.budget * (parameters / 1e6 if view == BY_BYTES else 1)
            star = "" if view == BY_BYTES or counts(records, task, view, way.group) else "*"
            row = [f"`{way.name}`, {task}", f"{budget:.3g}{star}"]
            row.append(mean_of([*its.losses.values()], 3))
            for name, count in its.steps.items():
                by_seed = dense_losses(records, task, count)
                theirs = statistics.mean(by_seed[seed] for seed in its.losses if seed in by_seed)
                whole = "" if count <= NETS[task].steps else "+"
                row += [f"{min(count, net.steps):.0f}{whole}", f"{theirs:.3f}"]
                row.append(mean_of(its.apart[name], 1, sign=True))
            rows.append(row)
    unit = "MB" if view == BY_BYTES else "s"
    heads = ("method", unit, "loss", "float32: steps", "loss", "apart, %")
    return table((*heads, "bfloat16: steps", "loss", "apart, %"), rows)


def parameters_of(records: Records, task: str) -> int:
    return int(next(r["parameters"] for c, r in results(records, "training") if c["task"] == task))


def fields(records: Records) -> dict[str, str]:
    whole = has_all(records)
    steps = [
        (
            cell["task"],
            RATES[cell["rate"]],
            ", ".join(f"{way} {values[0]:.1f}" for way, values in result["ways"].items()),
            f"{100 * result['busy']:.0f}",
        )
        for cell, result in results(records, "steps")
    ]
    dense_runs = [each for task in NETS for each in runs(records, task, DENSE)]
    lengths, tried = [], sorted({each.lr for each in dense_runs})
    for task in NETS:
        for count in sorted({each.steps for each in runs(records, task, DENSE)}):
            first = {
                each.lr: each.loss
                for each in runs(records, task, DENSE)
                if each.steps == count and each.seed == 0
            }
            shown = {lr: f"{loss:.3f}" for lr, loss in first.items()}
            chosen = min(first, key=lambda lr: first[lr])
            shown[chosen] = f"**{shown[chosen]}**"
            seeds = len(best(records, task, DENSE, count))
            row = [f"{task}, {count}", *(shown.get(lr, "") for lr in tried), str(seeds)]
            lengths.append(row)
    found: dict[str, Any] = {
        "times": table(("net", "link", "ms a step", "cores busy, %"), steps),
        "lengths": table(("net, steps", *(f"{lr:g}" for lr in tried), "seeds"), lengths),
    }
    for name, view in (("by_bytes", BY_BYTES), ("slow", "100mbit"), ("fast", "1gbit")):
        found[name] = budgets(records, view) if whole else "(not in a quick run)"
    alone = {c["task"]: r["seconds"] for c, r in results(records, "computing")}
    found["computing"] = " and ".join(f"{1e3 * s:.0f} ms ({task})" for task, s in alone.items())
    return found


def draw(records: Records, figure: Figure) -> None:
    """Draw the loss of whole trainings over their bytes, and over their time at 100 Mbit/s."""
    task = "gpt-0.8m" if has_all(records) else "gpt-0.1m"
    net = NETS[task]
    left, right = figure.subplots(1, 2, sharey=True)
    counts = sorted({each.steps for each in runs(records, task, DENSE)})
    dense = [statistics.mean(dense_losses(records, task, each).values()) for each in counts]
    whole = best(records, task, DENSE, net.steps)[0].bytes / net.steps
    for name, half, colour in (("float32", 1, COLOURS[0]), ("bfloat16", 2, COLOURS[1])):
        left.plot([each * whole / half for each in counts], dense, "o-", color=colour, label=name)
        if has_all(records):
            own = dense_seconds(records, task, "100mbit")
            cost = own if half == 1 else step_seconds(records, task, "100mbit", "bf16")
            right.plot([each * cost for each in counts], dense, "o-", color=colour, label=name)
    for way, colour in zip(net.ways if has_all(records) else (), COLOURS[2:], strict=False):
        for axes, view in ((left, BY_BYTES), (right, "100mbit")):
            if view in views(way):
                its = beside(records, task, way, view)
                loss = statistics.mean(its.losses.values())
                axes.plot([its.budget], [loss], "s", color=colour, label=way.name)
    left.set_xlabel("bytes a rank sends, for each parameter")
    right.set_xlabel("seconds at 100 Mbit/s")
    left.set_ylabel(f"loss at the end, {task}")
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.legend(fontsize=7)


EQUAL_BUDGETS = Entry("equal-budgets", cells, run, checks, fields, draw)
