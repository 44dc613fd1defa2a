"""Finds each method's learning rate on one seed, then runs more seeds at it; simulated ranks.

    python examples/convergence/sweep.py --methods dense 4bit topk@0.05 --into runs.jsonl
    python examples/convergence/paired.py runs.jsonl

A method is a name of simulated.py, with a density after @ where it has one. While the best rate is
at an edge of the grid, the grid grows beyond it. Every run is a line of JSON; runs that the file
already has are not repeated, so a stopped series continues.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from records import Run, append, cost, read, run_of
from simulate import train
from simulated import PLAIN, SPARSE, method_of
from tasks import SHARDS, TASKS
from tqdm import tqdm


class Named(NamedTuple):
    """A method, and its density where it has one."""

    method: str
    density: float | None


def named(text: str) -> Named:
    """Reads name or name@density."""
    name, _, density = text.partition("@")
    if name in PLAIN and not density:
        return Named(name, None)
    if name in SPARSE and density:
        return Named(name, float(density))
    raise argparse.ArgumentTypeError(
        f"no method {text!r}; there are {', '.join(PLAIN)}, "
        f"and with a density, as topk@0.05: {', '.join(SPARSE)}"
    )


def costs_by_rate(
    done: dict[Run, dict], method: Named, options: argparse.Namespace
) -> dict[float, float]:
    """The first seed's."""
    defined = (options.task, options.ranks, options.shards, *method, 0, options.steps)
    found = {run.lr: cost(done[run]) for run in done if run[:-1] == defined}
    return dict(sorted(found.items()))


def next_rate(costs: dict[float, float], grid: Sequence[float], growth: int = 3) -> float | None:
    """The first of the grid that is missing, or one beyond the edge where the best is.

    growth: how many are added beyond an edge, at most; each doubles or halves the rate.
    """
    for rate in grid:
        if rate not in costs:
            return rate
    best = min(costs, key=lambda rate: costs[rate])
    if best == max(costs) and best < max(grid) * 2**growth:
        return 2 * best
    if best == min(costs) and best > min(grid) / 2**growth:
        return best / 2
    return None


def next_run(done: dict[Run, dict], options: argparse.Namespace) -> Run | None:
    """The rates of all methods first, then seed after seed."""
    best = {}
    for method in options.methods:
        costs = costs_by_rate(done, method, options)
        rate = next_rate(costs, options.rates, options.growth)
        if rate is not None:
            where = (options.task, options.ranks, options.shards)
            return Run(*where, *method, 0, options.steps, rate)
        best[method] = min(costs, key=lambda each: costs[each])
    for seed in range(1, options.seeds):
        for method in options.methods:
            where = (options.task, options.ranks, options.shards)
            run = Run(*where, *method, seed, options.steps, best[method])
            if run not in done:
                return run
    return None


def runs(done: dict[Run, dict], options: argparse.Namespace) -> Iterator[Run]:
    """One after the other; the caller adds each one's record to `done`."""
    while (run := next_run(done, options)) is not None:
        yield run


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--task", choices=TASKS, default="gpt-0.4m")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--shards", choices=SHARDS, default="alike")
    parser.add_argument("--methods", nargs="+", type=named, required=True)
    parser.add_argument("--rates", nargs="+", type=float, default=[2e-3, 4e-3, 8e-3])
    parser.add_argument("--growth", type=int, default=3, help="rates added beyond an edge")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--into", type=pathlib.Path, required=True, help="file of JSON lines")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Does the runs that are not in the file yet."""
    options = parse(arguments)
    torch.set_num_threads(1)
    done = {run_of(record): record for record in read(options.into)}
    expected = len(options.methods) * (len(options.rates) + options.seeds - 1)
    with tqdm(total=expected, unit="run", mininterval=5) as progress:
        for run in runs(done, options):
            progress.set_description(f"{run.method} {run.density or ''} {run.lr:g} seed {run.seed}")
            tasks = [
                TASKS[run.task](rank, run.ranks, run.shards, run.seed) for rank in range(run.ranks)
            ]
            record = train(run._asdict(), tasks, method_of(run.method, run.density))
            done[run] = record
            append(options.into, record)
            progress.update()
    return 0


if __name__ == "__main__":
    sys.exit(main())
