"""Benchmark: the cost of gtopk.sparse_hook beyond torch's no-op hook.

It runs two models, each with both hooks in turn: an MLP of 25 million parameters, for which the
difference is given in copies (memcpy) of its gradient, timed in the same turns; and one of 120
small parameters, for which it is given in milliseconds. A step is a forward and a backward, with
one torch thread. CPU time, over all threads, is meaningful if other work shares the cores; it does
not show overlap.

Runs on every rank with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set; `tools/bench/run hook
--hosts 1 --rate none` starts it on one host, so that nothing is sent. Rank 0 prints the rows.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.nn.parallel import DistributedDataParallel

import gtopk

PHASES = ("compress", "exchange", "commit")
WARM_UP = 3  # steps in which DDP rebuilds its buckets and memory is first touched


class Cost(NamedTuple):
    """The time of one step or copy, in milliseconds."""

    wall: float
    cpu: float


class Turn(NamedTuple):
    """One step with each hook."""

    plain: Cost
    hooked: Cost


def cost_of(work: Callable[[], object]) -> Cost:
    """Runs the work once; returns its cost."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Cost((time.perf_counter() - wall) * 1e3, (time.process_time() - cpu) * 1e3)


class Pair:
    """One model with both hooks."""

    def __init__(self, width: int, layers: int, arguments: argparse.Namespace) -> None:
        """Wraps two copies of an MLP of square layers, each with a bias."""
        view = {"gradient_as_bucket_view": arguments.bucket_view}
        models = []
        for _ in range(2):
            torch.manual_seed(1)
            each = [layer for _ in range(layers) for layer in (nn.Linear(width, width), nn.ReLU())]
            models.append(DistributedDataParallel(nn.Sequential(*each[:-1]), **view))
        self.plain, self.hooked = models
        self.plain.register_comm_hook(None, noop_hook)
        scaler = torch.amp.GradScaler("cpu") if arguments.scaler else None
        gtopk.attach(self.hooked, arguments.density, scaler=scaler)
        self.x = torch.randn(arguments.batch, width)
        self.elements = sum(each.numel() for each in self.plain.parameters())
        self.turns = 0

    def step(self, ddp: DistributedDataParallel) -> Cost:
        """Times a forward and a backward."""
        ddp.zero_grad()
        dist.barrier()
        return cost_of(lambda: ddp(self.x).square().mean().backward())

    def turn(self) -> Turn:
        """Times a step with each hook; they take turns at going first."""
        self.turns += 1
        if self.turns % 2:
            plain = self.step(self.plain)
            return Turn(plain, self.step(self.hooked))
        hooked = self.step(self.hooked)
        return Turn(self.step(self.plain), hooked)


def row(name: str, values: Sequence[float]) -> None:
    """Prints median, least and most."""
    print(f"{name:40} {statistics.median(values):9.2f} {min(values):9.2f} {max(values):9.2f}")


def report(turns: Sequence[Turn], unit: str, copy: Cost) -> None:
    """Prints the steps and their differences in `unit`; one unit takes `copy`."""
    print(f"{'':40} {'p50':>9} {'min':>9} {'max':>9}")
    row("no-op hook, step (ms)", [each.plain.wall for each in turns])
    row("gtopk hook, step (ms)", [each.hooked.wall for each in turns])
    for at, of in enumerate(Cost._fields):
        plain = [each.plain[at] for each in turns]
        hooked = [each.hooked[at] for each in turns]
        beyond = [(b - a) / copy[at] for a, b in zip(plain, hooked, strict=True)]
        row(f"beyond, {of}, pair by pair ({unit})", beyond)
        quickest = (min(hooked) - min(plain)) / copy[at]
        print(f"{f'beyond, {of}, of the quickest ({unit})':40} {quickest:9.2f}")


def phases() -> list[float]:
    """Returns the milliseconds that the core has spent so far in each of its phases."""
    now = gtopk.stats()
    return [1e3 * float(now[f"{each}_seconds"]) for each in PHASES]


def large(arguments: argparse.Namespace) -> None:
    """Measures the MLP, in copies of its gradient."""
    pair = Pair(arguments.width, arguments.layers, arguments)
    source = torch.ones(pair.elements)
    target = torch.zeros_like(source)
    copies, turns, spent = [], [], []
    for _ in range(arguments.pairs + WARM_UP):
        copies.append(min(cost_of(lambda: target.copy_(source)) for _ in range(3)))
        before = phases()
        turns.append(pair.turn())
        spent.append([now - then for now, then in zip(phases(), before, strict=True)])
    copies, turns, spent = (each[WARM_UP:] for each in (copies, turns, spent))
    if dist.get_rank() != 0:
        return
    copy = Cost(*(min(each) for each in zip(*copies, strict=True)))
    print(f"# {pair.elements} elements, density {arguments.density}; a copy is the quickest one")
    report(turns, "copies", copy)
    row("copy (ms)", [each.wall for each in copies])
    for name, values in zip(PHASES, zip(*spent, strict=True), strict=True):
        row(f"{name}, in the core (copies)", [each / copy.wall for each in values])


def small(arguments: argparse.Namespace) -> None:
    """Measures the small parameters, in milliseconds."""
    pair = Pair(arguments.small_width, arguments.small_layers, arguments)
    turns = [pair.turn() for _ in range(20 * arguments.pairs + WARM_UP)][WARM_UP:]
    if dist.get_rank() == 0:
        print(f"# {2 * arguments.small_layers} parameters of {pair.elements} elements in all")
        report(turns, "ms", Cost(1, 1))


def main() -> None:
    """Measures both models."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", "--pairs", type=int, default=21)
    parser.add_argument("--density", type=float, default=0.001)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--width", type=int, default=2500)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--small-width", type=int, default=16)
    parser.add_argument("--small-layers", type=int, default=60)
    parser.add_argument("--bucket-view", action="store_true", help="gradient_as_bucket_view of DDP")
    parser.add_argument("--scaler", action="store_true", help="under a loss scale")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gtopk")
    large(arguments)
    small(arguments)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
