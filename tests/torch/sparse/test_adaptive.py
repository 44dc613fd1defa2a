"""Densities and merged layers, from times only. No processes, no native code."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from gtopk.state.adaptive import MEASURED, Piece, Stopwatch, choose

ALPHA, BETA, RANKS = 4e-4, 3.6e-8, 4  # seconds per message, and per element of 4 bytes
HOPS = math.log2(RANKS)
BOUNDS = (1e-4, 0.25)


def cost(elements: int, kind: object, density: float) -> float:
    """gTop-k's cost: an entry is two elements, an index and a value."""
    return HOPS * ALPHA + 2 * HOPS * BETA * density * elements


def chosen(pieces, **arguments):
    arguments = {"startup": HOPS * ALPHA, "cost": cost, "bounds": BOUNDS, **arguments}
    return choose([Piece(*each) for each in pieces], **arguments)


def test_density_follows_the_papers_formula_within_bounds():
    """rho = (slack - alpha log P) / (2 log P beta m), LAGS-SGD's with gTop-k's cost."""
    inside = 0
    for slack, elements in itertools.product((0.005, 0.02, 0.1), (10_000, 10**6, 10**8)):
        first, last = chosen([(elements, 0, 0.0), (1000, 0, slack)])
        formula = (slack - HOPS * ALPHA) / (2 * HOPS * BETA * elements)
        wanted = min(max(formula, BOUNDS[0]), BOUNDS[1])
        step = (BOUNDS[1] / BOUNDS[0]) ** (1 / 256)
        assert wanted / step * (1 - 1e-9) <= first.density <= wanted * (1 + 1e-9)
        assert last.density == BOUNDS[0]  # nothing to hide behind
        inside += BOUNDS[0] < formula < BOUNDS[1]
    assert inside >= 3


def test_a_late_link_leaves_the_next_unit_less_time():
    """The first one needs more than its slack even at the smallest density."""
    heavy = 10**10
    first, second, _ = chosen([(heavy, 0, 0.0), (10**6, 0, 0.01), (10, 0, 0.5)])
    assert first.density == BOUNDS[0]
    late = cost(heavy, 0, BOUNDS[0])
    assert late > 0.01
    assert second.starts == pytest.approx(late)
    alone = chosen([(10**6, 0, 0.0), (10, 0, 0.5 - late)])[0]
    assert second.density == alone.density


def test_units_are_merged_where_waiting_costs_less_than_a_start():
    wait = HOPS * ALPHA
    pieces = [(1000, 0, 0.0), (2000, 0, 0.9 * wait), (3000, 0, 2 * wait)]
    assert [each.members for each in chosen(pieces)] == [(0, 1), (2,)]
    assert [each.members for each in chosen(pieces, merges=False)] == [(0,), (1,), (2,)]
    kinds = [(1000, 0, 0.0), (2000, 1, 0.0), (3000, 1, 0.0)]
    assert [each.members for each in chosen(kinds)] == [(0,), (1, 2)]


def test_random_layers_keep_the_rules():
    seed = random.randrange(2**32)
    draws = random.Random(seed)
    for _ in range(200):
        pieces = [
            (draws.randrange(10**7), draws.randrange(2), draws.random() * 0.1)
            for _ in range(draws.randrange(1, 12))
        ]
        choices = chosen(pieces)
        members = [i for each in choices for i in each.members]
        assert sorted(members) == list(range(len(pieces))), seed
        free = 0.0
        for each, after in itertools.zip_longest(choices, choices[1:]):
            ready = max(pieces[i][2] for i in each.members)
            assert each.starts == max(ready, free), seed
            assert BOUNDS[0] <= each.density <= BOUNDS[1], seed
            free = each.starts + each.seconds
            if after is not None and each.density > BOUNDS[0]:
                assert free <= pieces[after.members[0]][2] + 1e-12, seed


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_stopwatch_takes_medians_of_settled_whole_backwards():
    clock = Clock()
    watch = Stopwatch(2, clock)
    delays = [9.0, 9.0, 5.0, 1.0, 2.0, 3.0, 100.0]
    for i, delay in enumerate(delays):
        assert watch.ready() is None
        watch.begin()
        watch.complete(1)
        clock.now += delay
        if i == 0:
            watch.begin()  # a backward that raised
            watch.complete(1)
            clock.now += delay
        watch.complete(0)
        watch.end()
    assert len(delays) == MEASURED + 2
    assert watch.ready() == [3.0, 0.0]
    watch.begin()
    watch.complete(0)
    watch.end()  # unit 1 took no part
    assert watch.ready() == [3.0, 0.0]
