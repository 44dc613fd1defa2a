"""Benchmark: the choice of `auto` against other algorithms, in cells chosen before measuring.

In each cell the costs are measured again and used for planning. Then all algorithms that are
predicted to take at most --within times the cheapest, and always dense, take turns, in another
order each time. A step's time is the slowest rank's, from a barrier on. The choice is compared with
the quickest median and with dense's. The quickest of eight medians is partly luck: if an algorithm
other than the choice has it, or dense is quicker, the two take turns again, and only these steps
count between them. Because every rank is its own host, or all share one, `gtopk` and `gtopk-placed`
send the same messages, and so does `hierarchical` if each rank is a host. Differences between their
medians are noise, which is shown; all their steps count for each of them.

Runs on every rank with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set; `tools/bench/run auto`
starts it in a network lab or on one host. Rank 0 prints the rows.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pathlib
import random
import statistics
import time
from typing import Any

import torch
import torch.distributed as dist

import gtopk

# The cells by link and ranks are (elements, density). There are forty in all; dense should win
# some.
CELLS: dict[tuple[str, int], list[tuple[float, float]]] = {
    ("100mbit", 2): [(1e5, 1e-3), (1e5, 1e-1), (1e6, 1e-2), (1e7, 1e-4), (1e7, 1e-2)],
    ("100mbit", 4): [
        *((1e5, 1e-4), (1e5, 1e-2), (1e6, 1e-3), (1e6, 1e-1), (1e7, 1e-3)),
        *((3e7, 1e-4), (3e7, 1e-2)),
    ],
    ("100mbit", 8): [
        *((1e5, 1e-3), (1e5, 1e-1), (1e6, 1e-4), (1e6, 1e-2), (1e7, 1e-3)),
        *((1e7, 1e-2), (3e7, 1e-3)),
    ],
    ("1gbit", 2): [(1e5, 1e-4), (1e5, 1e-2), (1e6, 1e-3), (1e6, 1e-1), (1e7, 1e-2), (3e7, 1e-3)],
    ("1gbit", 4): [
        *((1e5, 1e-3), (1e5, 1e-1), (1e6, 1e-4), (1e6, 1e-2), (1e6, 1e-1)),
        *((1e7, 1e-3), (1e7, 1e-1), (3e7, 1e-2)),
    ],
    ("shared memory", 2): [
        *((1e5, 1e-3), (1e5, 1e-1), (1e6, 1e-2), (1e6, 1e-1), (1e7, 1e-3)),
        *((1e7, 1e-1), (3e7, 1e-4)),
    ],
}


# If steps take more than this many seconds, two are enough; dense at 100 Mbit/s takes up to 17 per
# step.
SLOW = 8.0


class Contender:
    """One algorithm in one cell."""

    def __init__(self, algorithm: str, density: float, residual: torch.Tensor) -> None:
        """Start without measurements. residual: shared by all contenders."""
        self.algorithm = algorithm
        self.density = density
        self.residual = residual
        self.seconds: list[float] = []
        self.last = math.nan

    def step(self, gradient: torch.Tensor, tensor: torch.Tensor, *, counts: bool) -> None:
        """Make one call, with the residual that the last one left."""
        tensor.copy_(gradient)
        dist.barrier()
        begin = time.perf_counter()
        gtopk.sparse_all_reduce(
            tensor, density=self.density, residual=self.residual, algorithm=self.algorithm
        )
        taken = torch.tensor(time.perf_counter() - begin, dtype=torch.float64)
        dist.all_reduce(taken, dist.ReduceOp.MAX)
        if counts:
            self.seconds.append(taken.item())
        self.last = taken.item()

    def wants_more(self, options: argparse.Namespace) -> bool:
        """Return whether to go on; equal on all ranks, because times are the slowest rank's."""
        taken = len(self.seconds)
        if taken < (options.least if sum(self.seconds) < SLOW else 2):
            return True
        return taken < options.most and sum(self.seconds) < options.seconds


def measure(elements: int, density: float, options: argparse.Namespace) -> dict[str, Any]:
    """Return one cell's row, the same on all ranks."""
    plan = gtopk.plan(elements, density=density, refresh=True)
    predicted = {name: each["seconds"] for name, each in plan["predictions"].items()}
    limit = options.within * predicted[plan["algorithm"]]
    names = [name for name, seconds in predicted.items() if seconds <= limit or name == "dense"]
    generator = torch.Generator().manual_seed(1 + dist.get_rank())
    gradient = torch.randn(elements, generator=generator).pow_(3)
    tensor, residual = torch.empty(elements), torch.zeros(elements)
    contenders = [Contender(name, density, residual) for name in names]
    for each in contenders:
        if predicted[each.algorithm] < SLOW / 2:
            each.step(gradient, tensor, counts=False)
    order = random.Random(1)  # the order is the same on all ranks
    while running := [each for each in contenders if each.wants_more(options)]:
        order.shuffle(running)
        for each in running:
            each.step(gradient, tensor, counts=True)
    row = {
        "elements": elements,
        "density": density,
        "ranks": dist.get_world_size(),
        "link": options.link,
        "chosen": plan["algorithm"],
        "reason": plan["reason"],
        "costs": plan["costs"],
        "load": os.getloadavg()[0],
        "predicted": predicted,
        "seconds": {each.algorithm: each.seconds for each in contenders},
        "again": {},
    }
    medians = _medians(row)
    chosen = next(each for each in contenders if each.algorithm == row["chosen"])
    for name in {min(medians, key=lambda name: medians[name]): None, "dense": None}:
        if medians[name] >= medians[chosen.algorithm] or name in _twins(row, chosen.algorithm):
            continue
        other = next(each for each in contenders if each.algorithm == name)
        turns = min(options.pairs, max(5, int(options.again / (medians[name] + chosen.last))))
        pairs = []
        for turn in range(turns):
            for each in (chosen, other) if turn % 2 else (other, chosen):
                each.step(gradient, tensor, counts=False)
            pairs.append((chosen.last, other.last))
        row["again"][name] = pairs
    return row


def _twins(row: dict[str, Any], name: str) -> set[str]:
    """Return the algorithms that send the same messages as this one in this cell."""
    same = {"gtopk", "gtopk-placed"} | ({"hierarchical"} if "bit" in row["link"] else set())
    return same & row["seconds"].keys() if name in same else {name}


def _medians(row: dict[str, Any]) -> dict[str, float]:
    """Return each algorithm's seconds, from all steps of algorithms that do the same."""
    seconds = row["seconds"]
    return {
        name: statistics.median([each for twin in _twins(row, name) for each in seconds[twin]])
        for name in seconds
    }


def _over(row: dict[str, Any], name: str, medians: dict[str, float]) -> float:
    """Return the choice's time over another's, from the steps in turn if there are any."""
    if pairs := row.get("again", {}).get(name):
        return statistics.median(chosen / other for chosen, other in pairs)
    return medians[row["chosen"]] / medians[name]


def judged(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row's medians and the choice's ratio to them; dense's spread is by quartiles."""
    medians = _medians(row)
    best = min(medians, key=lambda name: medians[name])
    low, middle, high = statistics.quantiles(row["seconds"]["dense"], n=4)
    of_twins = [statistics.median(row["seconds"][name]) for name in _twins(row, "gtopk")]
    return {
        "medians": medians,
        "best": best,
        "over_best": max(1.0, _over(row, best, medians)),
        "over_dense": _over(row, "dense", medians),
        "dense_spread": (high - low) / middle,
        "noise": max(of_twins) / min(of_twins) if len(of_twins) > 1 else math.nan,
    }


def said(row: dict[str, Any]) -> str:
    """Return the row as a line of the table."""
    verdict = judged(row)
    medians, best, chosen = verdict["medians"], verdict["best"], row["chosen"]
    return (
        f"{row['link']:>13} {row['ranks']:>3} {row['elements']:>9} {row['density']:>8g} "
        f"{chosen:>12} {1e3 * row['predicted'][chosen]:9.2f} {1e3 * medians[chosen]:9.2f} "
        f"{best:>12} {1e3 * medians[best]:9.2f} {verdict['over_best']:6.2f} "
        f"{1e3 * medians['dense']:9.2f} {verdict['over_dense']:6.2f} "
        f"{verdict['dense_spread']:6.2f} {verdict['noise']:6.2f}"
    )


HEADER = (
    f"{'link':>13} {'P':>3} {'d':>9} {'density':>8} {'auto takes':>12} {'model(ms)':>9} "
    f"{'p50(ms)':>9} {'best':>12} {'p50(ms)':>9} {'over':>6} {'dense(ms)':>9} {'over':>6} "
    f"{'spread':>6} {'noise':>6}"
)


def summary(rows: list[dict[str, Any]]) -> str:
    """Return how many cells are within the limits."""
    verdicts = [judged(row) for row in rows]
    close = sum(each["over_best"] <= 1.1 for each in verdicts)
    kept = sum(each["over_dense"] <= 1.05 + each["dense_spread"] for each in verdicts)
    return (
        f"# within 10 % of the best: {close} of {len(rows)}; no worse than dense by 5 % and its "
        f"spread: {kept} of {len(rows)}"
    )


def main() -> None:
    """Measure the cells of this link and these ranks, or summarise earlier measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--link", choices=sorted({link for link, _ in CELLS}))
    parser.add_argument("--within", type=float, default=3.0, help="of the cheapest prediction")
    parser.add_argument("--least", type=int, default=3, help="steps of each")
    parser.add_argument("--most", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each, beyond the least")
    parser.add_argument("--again", type=float, default=4.0, help="seconds of a choice and another")
    parser.add_argument("--pairs", type=int, default=30, help="steps of each then, at most")
    parser.add_argument("--cells", type=int, nargs="+", help="numbers from 0 on; default: all")
    parser.add_argument("--json", type=pathlib.Path, help="rank 0 adds its rows, a line each")
    parser.add_argument("--add-up", type=pathlib.Path, help="such a file: print its table instead")
    options = parser.parse_args()
    if options.add_up:
        rows = [json.loads(line) for line in options.add_up.read_text().splitlines()]
        print("\n".join([HEADER, *map(said, rows), summary(rows)]))
        return
    if options.link is None:
        parser.error("--link is needed")
    torch.set_num_threads(1)
    dist.init_process_group("gtopk")
    first = dist.get_rank() == 0
    cells = CELLS.get((options.link, dist.get_world_size()))
    if cells is None:
        raise SystemExit(f"no cells of {dist.get_world_size()} ranks over {options.link}")
    rows = []
    if first:
        print(HEADER, flush=True)
    for number in options.cells or range(len(cells)):
        elements, density = cells[number]
        rows.append(measure(int(elements), density, options))
        if first:
            print(said(rows[-1]), flush=True)
            if options.json:
                with options.json.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    if first:
        print(summary(rows))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
