"""Mixed traffic for as long as one likes: sparse all-reduces with other
algorithms, selectors, wires, sizes and groups all the time, several in flight, while groups come
and go; between them collectives and messages of every kind from three threads.

What the reference knows must equal it, bit for bit; of the rest no mass may be lost and all ranks
must have the same bits. What a rank holds in memory must not grow.
"""

from __future__ import annotations

import collections
import ctypes
import dataclasses
import gc
import random
import time

import torch
import torch.distributed as dist

import gtopk
from helpers import reference
from helpers.random_collectives import run_cases
from helpers.ranks import Rank

SELECTORS = ("exact", "gaussian", "sampled", "threshold")
WIRES = (None, "raw", "bf16", "fp16", "int8")
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
GROUPS = 3  # at a time, beside the default one
MOST_IN_FLIGHT = 6
STEPS = 3  # of each stream, with the residuals of the one before
LOSSLESS = (None, "raw")
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt()
COLLECTIVES = 30  # after the streams of a round


@dataclasses.dataclass(frozen=True)
class Stream:
    """Calls one after the other with the same arguments; the same on all ranks."""

    seed: int
    d: int
    k: int
    algorithm: str
    select: str
    put_back: str
    wire: str | None
    dtype: torch.dtype
    average: bool

    def gradient(self, rank: int, step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.seed + 97 * rank + 13 * step)
        return torch.randn(self.d, generator=generator).pow(3).clamp(-100, 100).to(self.dtype)

    @property
    def is_known(self) -> bool:
        """Whether the reference gives its bits."""
        return (
            self.algorithm in reference.ALGORITHMS
            and self.select == "exact"
            and self.wire in LOSSLESS
            and self.d < 3000
        )

    @property
    def arguments(self) -> dict:
        op = dist.ReduceOp.AVG if self.average else dist.ReduceOp.SUM
        names = ("k", "algorithm", "select", "put_back", "wire")
        return {**{name: getattr(self, name) for name in names}, "op": op}


def drawn(draw: random.Random) -> Stream:
    d = int(10 ** draw.uniform(0, 3.4 if draw.random() < 0.8 else 5.5))
    algorithms = [*reference.ALGORITHMS, "sketch", "random-k", "auto"]
    return Stream(
        seed=draw.randrange(2**31),
        d=d,
        k=max(1, int(d * 10 ** draw.uniform(-3, 0))),
        algorithm=draw.choice(algorithms),
        select=draw.choice(SELECTORS),
        put_back=draw.choice(("own", "merged")),
        wire=draw.choice(WIRES),
        dtype=draw.choice(DTYPES),
        average=draw.random() < 0.3,
    )


class Running:
    """A stream among some ranks; knows all of their tensors where the reference is asked."""

    def __init__(self, stream: Stream, group, ranks: list[int], me: int) -> None:
        self.stream = stream
        self.group = group
        self.ranks = ranks
        self.place = ranks.index(me)
        self.residual = torch.zeros(stream.d, dtype=reference.accumulation(stream.dtype))
        self.every = [self.residual.clone() for _ in ranks] if stream.is_known else []
        self.state = torch.zeros(4, dtype=torch.float64)
        self.tensor = torch.empty(0)
        self.work = None

    def start(self, step: int) -> None:
        self.tensor = self.stream.gradient(self.ranks[self.place], step)
        self.before = self.tensor.double() + self.residual
        self.work = gtopk.sparse_all_reduce(
            self.tensor,
            residual=self.residual,
            state=self.state,
            group=self.group,
            async_op=True,
            **self.stream.arguments,
        )

    def check(self, step: int) -> None:
        stream = self.stream
        self.work.wait()
        if stream.is_known:
            gradients = [stream.gradient(rank, step) for rank in self.ranks]
            wanted = reference.sparse_all_reduce(
                gradients, self.every, stream.k, stream.algorithm, stream.put_back, stream.average
            )
            self.every = wanted.residuals
            assert torch.equal(self.tensor, wanted.tensor), (stream, step)
            assert torch.equal(self.residual, self.every[self.place]), (stream, step)
            return
        # Elementwise and over all ranks; the group's dense all-reduce is tested elsewhere.
        mine = torch.stack([self.before, self.residual.double()])
        dist.all_reduce(mine, group=self.group)
        times = len(self.ranks) if stream.average else 1
        error = (mine[0] - mine[1] - self.tensor.double() * times).abs()
        coarse = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-9}.get(stream.dtype, 1e-5)
        allowed = coarse * (mine[0].abs() + mine[1].abs()) + coarse * len(self.ranks)
        assert bool((error <= allowed).all()), (stream, step, error.max())
        bits = self.tensor.double()
        least, most = bits.clone(), bits.clone()
        dist.all_reduce(least, dist.ReduceOp.MIN, group=self.group)
        dist.all_reduce(most, dist.ReduceOp.MAX, group=self.group)
        assert torch.equal(least, most), (stream, step)


def give_back_what_is_free() -> None:
    """glibc raises its thresholds with the largest block that was freed, and then keeps up to 64
    MiB at the top of each arena, of which it makes one for each of the first threads: memory that
    is free, but counts as held. Fixed thresholds stay.
    """
    libc = ctypes.CDLL(None)
    for threshold in (M_TRIM_THRESHOLD, M_MMAP_THRESHOLD):
        assert libc.mallopt(threshold, 128 * 1024) == 1


def resident_mib() -> float:
    """What this process holds, after it has given back what it can."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096 / 2**20


def soak(me: Rank, seed: int, least: int, seconds: float = 0.0) -> dict:
    """On every rank, `least` rounds or more. Calls of each algorithm and kind of collective; MiB
    held after a third of the time, and at its end.
    """
    torch.set_num_threads(1)
    give_back_what_is_free()
    draw = random.Random(seed)
    counted: collections.Counter = collections.Counter()
    groups: list = [(None, list(range(me.size)))]
    began, rounds, third = time.monotonic(), 0, 0.0
    elapsed = torch.zeros(1, dtype=torch.float64)
    while rounds < least or elapsed.item() < seconds:
        ranks = sorted(draw.sample(range(me.size), draw.randint(1, me.size)))
        groups.append((dist.new_group(ranks, backend="gtopk"), ranks))
        if len(groups) > 1 + GROUPS:
            group, members = groups.pop(draw.randrange(1, len(groups)))
            if me.rank in members:
                dist.destroy_process_group(group)
        drawn_now = [(drawn(draw), draw.choice(groups)) for _ in range(MOST_IN_FLIGHT)]
        running = [
            Running(stream, group, ranks, me.rank)
            for stream, (group, ranks) in drawn_now
            if me.rank in ranks
        ]
        for step in range(STEPS):
            for each in running:
                each.start(step)
            for each in running:
                each.check(step)
        counted.update(each.stream.algorithm for each in running for _ in range(STEPS))
        counted["by the reference"] += STEPS * sum(each.stream.is_known for each in running)
        counted.update(run_cases(me, seed + rounds, COLLECTIVES))
        rounds += 1
        elapsed.fill_(time.monotonic() - began)
        dist.broadcast(elapsed, 0)
        if not third and elapsed.item() > seconds / 3:
            third = resident_mib()
    for group, ranks in groups[1:]:
        if me.rank in ranks:
            dist.destroy_process_group(group)
    end = resident_mib()
    return {"rounds": rounds, "calls": dict(counted), "third": third or end, "end": end}
