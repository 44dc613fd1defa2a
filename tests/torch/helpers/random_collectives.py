"""Random collectives of random groups, from several threads at once, compared
with gloo where it supports them and with a reference computed from every rank's input.

    python tests/torch/helpers/random_collectives.py [--ranks P] [--seed S] [--count N] [--case N]

A thread has its own groups and runs its cases in batches. Each rank calls and waits for a batch's
asynchronous cases in its own order, except that the cases of one group are in the same order on all
ranks.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import itertools
import os
import random
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed

if __name__ == "__main__":
    # Ranks import the module by its name.
    sys.path[0] = os.path.dirname(sys.path[0])
    from helpers import random_collectives

    sys.exit(random_collectives.main())

import torch
import torch.distributed as dist

from helpers.random_cases import Case
from helpers.random_kinds import KINDS, difference, drawn_case
from helpers.ranks import Rank, RankSet

THREADS = 3
LARGEST_BATCH = 8


class Group:
    """The same ranks with both backends."""

    def __init__(self, ranks: tuple[int, ...]) -> None:
        self.ranks = ranks
        self.mine = dist.new_group(list(ranks), backend="gtopk")
        self.gloo = dist.new_group(list(ranks), backend="gloo")


@functools.cache
def groups(thread: int, size: int) -> list[Group]:
    """Made once per rank: a group of all ranks and one of each smaller size, per thread."""
    draw = random.Random(thread)
    subsets = [tuple(sorted(draw.sample(range(size), members))) for members in range(1, size)]
    return [Group(ranks) for ranks in (tuple(range(size)), *subsets)]


def batches(seed: int, thread: int, count: int, size: int) -> Iterator[list[tuple[int, Case]]]:
    """Cases, each with the index of its group in groups(); the same on all ranks."""
    draw = random.Random(f"{seed} {thread}")
    sizes = [size, *range(1, size)]
    left = count
    while left > 0:
        batch = []
        for _ in range(min(left, draw.randint(1, LARGEST_BATCH))):
            place = draw.randrange(len(sizes))
            number = (count - left) * THREADS + thread
            left -= 1
            batch.append((place, drawn_case(draw, seed, number, sizes[place])))
        together = [each for each in batch if each[1].asynchronous]
        if together:
            yield together
        # Blocking cases must come in the same order on all ranks.
        yield from ([each] for each in batch if not each[1].asynchronous)


def mixed(batch: list[tuple[int, Case]], draw: random.Random) -> list[tuple[int, Case]]:
    """Shuffled, except that the cases of one group stay in order."""
    places = [place for place, _ in batch]
    draw.shuffle(places)
    of_group = {
        place: iter([case for other, case in batch if other == place]) for place in set(places)
    }
    return [(place, next(of_group[place])) for place in places]


def run_batch(me: Rank, having: list[Group], batch: list, draw: random.Random) -> list[str]:
    """Runs a batch; returns what is wrong, a line each."""
    mine = [(having[at], case) for at, case in batch if me.rank in having[at].ranks]
    order = [(having[at], case) for at, case in mixed(batch, draw) if me.rank in having[at].ranks]
    started = []
    for group, case in order:
        rank = group.ranks.index(me.rank)
        called = KINDS[case.kind].call(case, group.mine, rank, case.asynchronous)
        started.append((case, rank, *called))
    draw.shuffle(started)
    wrong = []
    for case, rank, works, results in started:
        for work in works:
            if draw.random() < 0.3 and (future := work.get_future()) is not None:
                future.wait()
            work.wait()
        wanted = KINDS[case.kind].expected(case, rank)
        if unlike := difference(case, results, wanted):
            wrong.append(f"{case} on rank {rank}: {unlike}")
    for group, case in mine:  # the same order on all ranks, one after the other
        if not KINDS[case.kind].gloo_can(case):
            continue
        rank = group.ranks.index(me.rank)
        plain = dataclasses.replace(case, layout="contiguous")  # gloo supports few others
        _, theirs = KINDS[case.kind].call(plain, group.gloo, rank, False)
        ((_, _, _, results),) = [each for each in started if each[0] is case]
        if unlike := difference(case, results, theirs):
            wrong.append(f"{case} on rank {rank}, beside gloo: {unlike}")
    return wrong


def run_cases(me: Rank, seed: int, count: int, only: int | None = None) -> dict[str, int]:
    """Runs on every rank. Returns how many of each kind, and how many gloo has too."""
    torch.set_num_threads(1)
    share = [count // THREADS + (thread < count % THREADS) for thread in range(THREADS)]
    having = [groups(thread, me.size) for thread in range(THREADS)]

    def run(thread: int) -> tuple[collections.Counter, list[str]]:
        counted: collections.Counter = collections.Counter()
        draw = random.Random(f"{seed} {thread} {me.rank}")
        wrong = []
        for drawn in batches(seed, thread, share[thread], me.size):
            batch = [each for each in drawn if only in (None, each[1].number)]
            for _, case in batch:
                counted[case.kind] += 1
                counted["of them gloo's"] += KINDS[case.kind].gloo_can(case)
            wrong += run_batch(me, having[thread], batch, draw)
        return counted, wrong

    threads = ThreadPoolExecutor(THREADS)
    runs = [threads.submit(run, thread) for thread in range(THREADS)]
    for each in as_completed(runs):
        each.result()  # raises at once: the other threads may wait for what never comes
    threads.shutdown()
    outcomes = [each.result() for each in runs]
    wrong = list(itertools.chain.from_iterable(outcome[1] for outcome in outcomes))
    assert not wrong, "\n".join([f"{len(wrong)} wrong, the first of them:", *wrong[:5]])
    return dict(sum((outcome[0] for outcome in outcomes), collections.Counter()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--case", type=int, help="only the case of this number")
    given = parser.parse_args()
    began = time.monotonic()
    with RankSet(given.ranks) as ranks:
        arguments = (given.seed, given.count, given.case)
        counted = ranks.run(run_cases, *arguments, timeout=3600)[0]
    for kind, number in sorted(counted.items()):
        print(f"{number:>7} {kind}")
    print(
        f"{sum(counted[kind] for kind in KINDS if kind in counted):>7} in all, "
        f"{given.ranks} ranks, seed {given.seed}, {time.monotonic() - began:.0f} s"
    )
    return 0
