"""gtopk.advise, on four ranks."""

from __future__ import annotations

import re

import pytest
import torch
import torch.distributed as dist
from gtopk.training.advise import _WAYS, kind_of
from torch import nn

import gtopk
from helpers.paths import DOCS
from helpers.ranks import Rank, RankSet
from helpers.training import network

pytestmark = pytest.mark.loopback

TUNING = DOCS / "tuning.md"


def check_each_way_is_predicted_as_plan_does(me: Rank) -> None:
    model = nn.Linear(1000, 1000)
    d = sum(each.numel() for each in model.parameters())
    advice = gtopk.advise(nn.parallel.DistributedDataParallel(model), step_seconds=0.25)
    assert (advice.parameters, advice.ranks, advice.kind) == (d, 4, "other")
    dense, int8, four_bits, ternary, topk, sparse = advice.rows
    assert dense["arguments"] == {}
    # Twice 3/4 of the elements, and headers: 4 bytes each; 1.0078, 0.53 and 0.206 with the scales.
    assert dense["bytes"] == pytest.approx(6 * d, rel=0.05)
    assert int8["bytes"] == pytest.approx(1.5 * d * (1 + 2 / 256), rel=0.05)
    assert four_bits["bytes"] == pytest.approx(1.5 * d * 4.25 / 8, rel=0.05)
    assert ternary["bytes"] == pytest.approx(1.5 * d * 66 / 320, rel=0.05)
    for row, density in ((topk, 0.05), (sparse, 0.01)):
        plan = gtopk.plan(d, density=density)
        assert plan is not None
        predicted = plan["predictions"][row["arguments"]["algorithm"]]
        assert row["bytes"] == predicted["bytes"]
        assert row["seconds"] == predicted["seconds"]
    for row in advice.rows:
        assert row["step_seconds"] == 0.25 + row["seconds"] > 0.25
        options = {"density": 1.0, **row["arguments"]}
        decay = options.pop("error_decay", 1.0)  # an argument of attach alone
        assert (decay == 0) == (row is ternary)
        gtopk.sparse_all_reduce(torch.ones(d), residual=torch.zeros(d), **options)
    said = str(advice)
    assert f"{d:,} parameters" in said
    assert "algorithm='gtopk', density=0.01" in said
    assert len({len(line.split("  ")[0]) for line in said.splitlines()}) > 1


def check_types_add_up_and_steps_are_left_out(me: Rank) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64).bfloat16())
    advice = gtopk.advise(model)
    assert advice.parameters == 2 * 65 * 64
    parts = [gtopk.advise(each).rows for each in model]
    for whole, one, other in zip(advice.rows, *parts, strict=True):
        assert whole["bytes"] == one["bytes"] + other["bytes"]
        assert whole["step_seconds"] is None


def check_ranks_may_have_their_types_in_any_order(me: Rank) -> None:
    parts = [nn.Linear(64, 64), nn.Linear(32, 32).bfloat16()]
    rows = gtopk.advise(nn.Sequential(*(parts if me.rank % 2 else parts[::-1]))).rows
    first = [rows]
    dist.broadcast_object_list(first, src=0)
    assert rows == first[0]


def check_what_is_wrong_is_told(me: Rank) -> None:
    with pytest.raises(ValueError, match="step_seconds must be 0 or more, given -1"):
        gtopk.advise(network(), step_seconds=-1)
    with pytest.raises(ValueError, match=r"must be a torch\.nn\.Module, given int"):
        gtopk.advise(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"models are not alike.*elements of torch.float32 are"):
        gtopk.advise(nn.Linear(8, 8 + (me.rank == 2)))


def test_kinds() -> None:
    assert kind_of(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Embedding(3, 4))) == "convolutional"
    assert kind_of(nn.TransformerEncoderLayer(8, 2)) == "transformer"
    assert kind_of(nn.Linear(2, 2)) == "other"


def test_its_losses_are_those_of_the_page() -> None:
    page = TUNING.read_text(encoding="utf-8")
    for _, losses in _WAYS:
        for loss in filter(None, losses.values()):
            for figure in re.findall(r"[−\d][\d.]*(?: ± [\d.]+)? (?:%|points)", loss):
                assert figure in page, figure


def test_on_four_ranks(four: RankSet, check) -> None:
    four.run(check)
