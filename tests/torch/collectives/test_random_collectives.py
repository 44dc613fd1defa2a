"""Random collectives against gloo and a reference; see random_collectives.py."""

from __future__ import annotations

import random

import pytest
import torch

from helpers.random_cases import Case
from helpers.random_collectives import batches, mixed, run_cases
from helpers.random_kinds import KINDS, difference, drawn_case
from helpers.ranks import RankSet


@pytest.mark.loopback
def test_some_hundreds_from_three_threads(four: RankSet) -> None:
    counted = four.run(run_cases, 1, 300)[0]
    assert sum(counted[kind] for kind in KINDS) == 300


@pytest.mark.loopback
@pytest.mark.long
@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
def test_ten_thousand_from_three_threads(ranks: int) -> None:
    with RankSet(ranks) as some:
        counted = some.run(run_cases, 10 + ranks, 2500, timeout=3600)[0]
    assert sum(counted[kind] for kind in KINDS) == 2500


def test_cases_and_their_inputs_are_alike_on_every_rank() -> None:
    first, again = (list(batches(3, 1, 40, 4)) for _ in range(2))
    assert first == again
    case = first[0][0][1]
    assert torch.equal(case.values(2), case.values(2))
    assert [each[1].number % 3 for batch in first for each in batch] == [1] * 40


def test_a_case_alone_is_what_it_is_among_others() -> None:
    numbers = [each[1].number for batch in batches(3, 0, 40, 4) for each in batch]
    assert len(set(numbers)) == 40


def test_orders_differ_but_not_within_a_group() -> None:
    batch = [(number % 3, case) for number, case in enumerate(cases(12))]
    orders = [mixed(batch, random.Random(seed)) for seed in range(5)]
    assert any(order != orders[0] for order in orders)
    for order in orders:
        for place in range(3):
            of_group = [case for at, case in batch if at == place]
            assert [case for at, case in order if at == place] == of_group


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_every_kind_is_drawn_and_a_wrong_result_is_seen() -> None:
    seen = set()
    for case in cases(200):
        seen.add(case.kind)
        right = KINDS[case.kind].expected(case, case.root)
        assert difference(case, right, right) == ""
        if right and right[0].numel():
            flipped = right[0].contiguous().clone()
            flipped.view(-1).view(torch.uint8)[flipped.element_size() - 1] ^= 0x40
            assert difference(case, [flipped, *right[1:]], right)
            assert difference(case, right[1:], right)
    assert seen == set(KINDS)


def cases(count: int) -> list[Case]:
    draw = random.Random(5)
    return [drawn_case(draw, 5, number, 4) for number in range(count)]
