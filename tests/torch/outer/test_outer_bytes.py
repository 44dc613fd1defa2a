"""What a round of ``gtopk.OuterOptimizer`` sends, against the arithmetic of docs/outer.md."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gtopk.training.outer_exchange import Selection

from helpers.outer import INNER, Outer
from helpers.ranks import Rank, RankSet
from helpers.training import flat, gloo, network

pytestmark = pytest.mark.loopback

AGREEMENT = 64 + 24  # bytes: a header, and round, digest and whether one takes part


def sent(outer: Outer) -> int:
    """Bytes of the next round."""
    before = outer.optimizer.stats()["bytes_sent"]
    outer.steps(INNER)
    return outer.optimizer.stats()["bytes_sent"] - before


def check_bytes_of_a_round_where_everything_travels(me: Rank) -> None:
    d = flat(network()).numel()
    for arguments, dense in (
        ({"preset": "localsgd"}, 2 * (64 + 4 * d)),
        ({"preset": "diloco"}, 2 * (64 + 4 * d)),
    ):
        assert sent(Outer(me.rank, **arguments)) == 3 * AGREEMENT + dense
    blocks = -(-d // 256)  # the last one has d mod 256 values
    outer = Outer(me.rank, preset="diloco", wire="int8", error_decay=1.0)
    owned = [(rank + 1) * blocks // 4 - rank * blocks // 4 for rank in range(4)]
    sizes = [258 * count for count in owned]
    sizes[3] -= 256 * blocks - d
    assert sent(outer) == 3 * AGREEMENT + 2 * 64 + sum(sizes) + 2 * sizes[me.rank]


def check_bytes_of_a_round_of_lists(me: Rank) -> None:
    """On two replicas: one list of each part, and nothing of who contributed."""
    outer = Outer(me.rank, preset="sparseloco", wire="raw", mean="participants")
    parts = [each.part for each in outer.optimizer._rounds.parts()]
    entries = [min(64, part.block) * (part.numel // part.block) for part in parts]
    assert sent(outer) == AGREEMENT + sum(64 + 8 * count for count in entries)
    bare = sent(Outer(me.rank, preset="sparseloco"))
    plain = sent(Outer(me.rank, preset="sparseloco", mean="participants"))
    assert bare == plain
    values = sum(-(-count // 4) + 8 * -(-count // 256) for count in entries)
    indices = plain - AGREEMENT - values - 64 * len(entries)
    assert 0 < 8 * indices / sum(entries) < 8


def check_bytes_of_a_norm(me: Rank) -> None:
    """It travels ahead of the round to each of three others."""
    usual = sent(Outer(0, preset="sparseloco"))
    assert sent(Outer(0, preset="sparseloco", clip="median")) == usual + 3 * 8


def coded_bytes(indices: list[int]) -> int:
    """Of a list in 2bit without its header: values, scales, and gaps by docs/algorithms.md."""
    before, low, unary = -1, 0, 0
    for begin in range(0, len(indices), 256):
        block = indices[begin : begin + 256]
        mean = (block[-1] - before - len(block) // 2) // len(block)
        bits = max(0, mean.bit_length() - 1)
        gaps = [there - here - 1 for here, there in pairwise([before, *block])]
        low += bits * len(block)
        unary += sum((gap >> bits) + 1 for gap in gaps)
        before = block[-1]
    blocks = -(-len(indices) // 256)
    return -(-len(indices) // 4) + 8 * blocks + blocks + -(-low // 8) + -(-unary // 8)


def sent_with_lists(outer: Outer) -> tuple[int, list[int]]:
    """Bytes of the next round, and those of this replica's own list of each part."""
    sizes: list[int] = []
    select = Selection.of

    def noted(selection: Selection, *given: Any) -> torch.Tensor:
        found = select(selection, *given)
        sizes.append(coded_bytes(found.nonzero().flatten().tolist()))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Selection, "of", noted)
        return sent(outer), sizes


def check_bytes_of_a_round_of_lists_among_four(me: Rank) -> None:
    """Each sends its own list of each part, and then with it that of its neighbour: no sums."""
    for arguments in ({}, {"mean": "participants"}, {"fragments": 2}):
        outer = Outer(me.rank, preset="sparseloco", **arguments)
        total, sizes = sent_with_lists(outer)
        everyones: list[Any] = [None] * me.size
        dist.all_gather_object(everyones, sizes, group=gloo())
        rounds = outer.optimizer.stats()["rounds"]
        assert rounds == arguments.get("fragments", 1)
        assert len(sizes) >= 5
        wanted = rounds * 3 * AGREEMENT
        for mine, its in zip(sizes, everyones[me.rank ^ 1], strict=True):
            wanted += 64 + mine + 64 + sum(16 + -(-each // 8) * 8 for each in (mine, its))
        assert total == wanted, arguments


def test_bytes_of_a_round_of_lists(two: RankSet) -> None:
    two.run(check_bytes_of_a_round_of_lists)


def test_on_four_ranks(four: RankSet, check) -> None:
    four.run(check)
