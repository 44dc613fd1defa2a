"""gtopk.save and gtopk.load of an OuterOptimizer."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil

import pytest
import torch
import torch.distributed as dist
from gtopk.training import folders, outer_checkpoint
from torch import nn

import gtopk
from helpers.checkpoints import path_of, shared_folder
from helpers.outer import Outer
from helpers.ranks import Rank, RankSet
from helpers.saves import InjectedError, Step, failing, raise_error
from helpers.training import flat, network

pytestmark = pytest.mark.loopback

PRESETS = {
    "localsgd": {},
    "diloco": {},
    "streaming-diloco": {"inner_steps": 6},  # an exchange is under way after the fourth step
    "sparseloco": {},
    "pulseloco": {},
    "demo": {},
}
STEPS = {
    "before anything": Step(folders, "begin", 0),
    "before the shared file": Step(outer_checkpoint, "_put", 0),
    "with a replica's file written": Step(outer_checkpoint, "_put", 3, after=True),
    "with all files seen": Step(outer_checkpoint, "_check_seen", 0, after=True),
    "before CURRENT": Step(folders, "commit", 0),
    "with CURRENT renamed": Step(os, "replace", 0, only="CURRENT", after=True, new=True),
    "while the old version is removed": Step(shutil, "rmtree", 0, new=True),
}


def errors(outer: Outer) -> dict[str, torch.Tensor]:
    return outer.optimizer.state_dict()["gtopk"]["error"]


def summed(tensors: dict[str, torch.Tensor], group: dist.ProcessGroup | None) -> torch.Tensor:
    total = torch.cat([each.double().flatten() for each in tensors.values()])
    dist.all_reduce(total, group=group)
    return total


def check_a_run_goes_on_bit_for_bit(me: Rank) -> None:
    folder = shared_folder(me)
    for preset, arguments in PRESETS.items():
        whole = Outer(me.rank, preset=preset, **arguments)
        whole.steps(4)
        assert whole.optimizer.pending == (preset == "streaming-diloco")
        gtopk.save(whole.optimizer, path_of(folder))
        resumed = Outer(me.rank, network(7), preset=preset, **arguments)
        assert gtopk.load(resumed.optimizer, path_of(folder)) == ([], [])
        assert resumed.optimizer.steps == 4
        resumed.at = whole.at
        for each in (whole, resumed):
            each.steps(4)
        assert torch.equal(flat(whole.model), flat(resumed.model)), preset
        assert torch.equal(whole.shared(), resumed.shared()), preset
    dist.barrier()


def check_fewer_and_more_replicas_keep_the_sum_of_the_errors(me: Rank) -> None:
    folder = shared_folder(me)
    pair, others = (dist.new_group(ranks) for ranks in ([0, 2], [1, 3]))
    mine = pair if me.rank in (0, 2) else others
    four = Outer(me.rank, preset="sparseloco")
    four.steps(4)
    total = summed(errors(four), None)
    gtopk.save(four.optimizer, path_of(folder))
    two = Outer(me.rank, network(7), preset="sparseloco", group=mine)
    gtopk.load(two.optimizer, path_of(folder))
    assert torch.equal(two.shared(), four.shared())
    assert torch.allclose(summed(errors(two), mine), total, rtol=0, atol=1e-6)
    assert flat(two.model).equal(flat(four.model)) == (me.rank == 0)  # replica 1 is rank 2 or 3
    two.steps(4)
    if me.rank in (0, 2):
        gtopk.save(two.optimizer, path_of(folder))
    dist.barrier()
    four = Outer(me.rank, network(7), preset="sparseloco")
    gtopk.load(four.optimizer, path_of(folder))
    assert four.optimizer.steps == 8
    assert any(each.any() for each in errors(four).values()) == (me.rank < 2)
    if me.rank >= 2:
        assert torch.equal(flat(four.model), four.shared())
    four.steps(4)
    dist.barrier()


def check_replica_count_change_during_an_exchange_is_refused(me: Rank) -> None:
    folder = shared_folder(me)
    pair, others = (dist.new_group(ranks) for ranks in ([0, 1], [2, 3]))
    outer = Outer(me.rank, preset="streaming-diloco", inner_steps=6)
    outer.steps(4)
    gtopk.save(outer.optimizer, path_of(folder))
    two = Outer(
        me.rank,
        preset="streaming-diloco",
        inner_steps=6,
        group=pair if me.rank < 2 else others,
    )
    before = two.shared()
    with pytest.raises(
        (ValueError, RuntimeError), match="by 4 replicas with an exchange under way"
    ):
        gtopk.load(two.optimizer, path_of(folder))
    assert torch.equal(two.shared(), before)
    dist.barrier()


def check_a_save_that_fails_leaves_the_old_state_or_the_new(me: Rank) -> None:
    for name, step in STEPS.items():
        folder = shared_folder(me)
        outer = Outer(me.rank, preset="sparseloco")
        gtopk.save(outer.optimizer, path_of(folder))
        outer.steps(4)
        told = contextlib.nullcontext()
        if not step.new or me.rank == step.rank:
            told = pytest.raises((InjectedError, RuntimeError), match="no space left")
        if step.only:  # all replicas hear of it, and the new state counts all the same
            told = pytest.raises((InjectedError, RuntimeError), match="no space left")
        with told, failing(step, me, raise_error):
            gtopk.save(outer.optimizer, path_of(folder))
        dist.barrier()
        loaded = Outer(me.rank, network(7), preset="sparseloco")
        gtopk.load(loaded.optimizer, path_of(folder))
        assert loaded.optimizer.steps == (4 if step.new else 0), name
        if step.new:
            assert torch.equal(flat(loaded.model), flat(outer.model)), name
        dist.barrier()


def check_what_cannot_be_loaded_says_why_and_changes_nothing(me: Rank) -> None:
    folder = shared_folder(me)
    outer = Outer(me.rank, preset="sparseloco")
    path = path_of(folder)

    def refused(what: str, load: object, where: pathlib.Path = path) -> None:
        before = flat(outer.model)
        with pytest.raises((ValueError, RuntimeError, FileNotFoundError), match=what):
            gtopk.load(load, where)
        assert torch.equal(flat(outer.model), before)
        dist.barrier()

    refused("holds no checkpoint", outer.optimizer)
    gtopk.save(outer.optimizer, path)
    state = gtopk.SparseState(network().named_parameters(), density=0.02)
    refused("is an OuterOptimizer's checkpoint", state)
    wide = nn.Sequential(nn.Linear(3, 2))
    refused(
        "the saved model differs from this one", Outer(me.rank, wide, preset="sparseloco").optimizer
    )
    refused("error_decay=0.95", Outer(me.rank, preset="sparseloco", error_decay=0.5).optimizer)
    gtopk.save(state, path / "sparse")
    refused("is that of a SparseState", outer.optimizer, path / "sparse")
    with pytest.raises((FileExistsError, RuntimeError), match="already holds a checkpoint"):
        gtopk.save(outer.optimizer, path, overwrite=False)
    with pytest.raises(ValueError, match="got a different path"):
        gtopk.save(outer.optimizer, path / str(me.rank))
    if me.rank == 1:
        outer.step()  # no exchange
    with pytest.raises(ValueError, match=r"not at the same step.* the number of steps is"):
        gtopk.save(outer.optimizer, path)
    if me.rank != 1:
        outer.step()
    if me.rank == 0:
        (lost,) = path.glob("version-*/replica-2.pt")
        lost.unlink()
    dist.barrier()
    refused(r"replica-2.pt does not exist", outer.optimizer)
    if me.rank == 0:
        lost.write_bytes(b"of another program")
    dist.barrier()
    refused(r"replica-2.pt is damaged", outer.optimizer)
    if me.rank == 0:
        torch.save({"model": {}}, lost)
    dist.barrier()
    refused(r"replica-2.pt is not a file of gtopk.save", outer.optimizer)


def check_settings_newer_than_a_state_were_at_their_defaults(me: Rank) -> None:
    outer = Outer(me.rank, preset="sparseloco")
    outer.steps(4)
    saved = outer.optimizer.state_dict()
    for name in ("clip", "quorum"):
        del saved["gtopk"]["settings"][name]
    loaded = Outer(me.rank, network(7), preset="sparseloco")
    loaded.optimizer.load_state_dict(saved)
    assert torch.equal(loaded.shared(), outer.shared())
    stricter = Outer(me.rank, preset="sparseloco", quorum=2)
    with pytest.raises(ValueError, match="has quorum=1, but this OuterOptimizer has quorum=2"):
        stricter.optimizer.load_state_dict(saved)
    del saved["gtopk"]["settings"]["preset"]
    with pytest.raises(ValueError, match="its settings are invalid"):
        loaded.optimizer.load_state_dict(saved)


def test_on_four_ranks(four: RankSet, check) -> None:
    four.run(check)
