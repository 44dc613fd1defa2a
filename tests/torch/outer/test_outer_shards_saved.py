"""``gtopk.OuterOptimizer`` over FSDP2: saves, errors, and the page's example."""

from __future__ import annotations

import copy
import functools
import re
import textwrap

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import gtopk
from helpers.checkpoints import path_of, shared_folder
from helpers.outer_shards import Outer, mesh, network, own_parts, sharded
from helpers.paths import DOCS
from helpers.ranks import Rank, RankSet
from helpers.training import batch, equal

pytestmark = pytest.mark.loopback

PAGE = DOCS / "outer.md"
RESUMED = {
    "streaming-diloco": {"inner_steps": 10, "fragments": 5},  # with an exchange under way
    "sparseloco": {},
}


@functools.cache
def pairs(*groups: tuple[int, int]) -> dist.ProcessGroup:
    return dist.new_subgroups_by_enumeration([list(each) for each in groups])[0]


def check_a_run_goes_on_bit_for_bit(me: Rank) -> None:
    """From a folder, and from each rank's state_dict()."""
    folder = shared_folder(me)
    for preset, arguments in RESUMED.items():
        whole = Outer(me, preset=preset, **arguments)
        whole.steps(4)
        assert whole.optimizer.pending == (preset == "streaming-diloco")
        gtopk.save(whole.optimizer, path_of(folder))
        saved = copy.deepcopy((whole.model.state_dict(), whole.optimizer.state_dict()))
        found = []
        for way in ("folder", "state_dict"):
            resumed = Outer(me, sharded(network(7)), preset=preset, **arguments)
            if way == "folder":
                gtopk.load(resumed.optimizer, path_of(folder))
            else:
                resumed.model.load_state_dict(saved[0])
                resumed.optimizer.load_state_dict(saved[1])
            assert resumed.optimizer.steps == 4
            resumed.at = whole.at
            found.append(resumed)
        for each in (whole, *found):
            each.steps(4)
        for each in found:
            assert equal(own_parts(whole.model), own_parts(each.model)), preset
            assert equal(whole.shared(), each.shared()), preset
    dist.barrier()


def check_a_state_is_that_of_its_shard(me: Rank) -> None:
    outer = Outer(me, preset="diloco")
    saved = outer.optimizer.state_dict()
    for name in saved["gtopk"]["shards"]:
        saved["gtopk"]["shards"][name] = f"part {1 - me.rank % 2} of 2 along dimension 0"
    with pytest.raises(ValueError, match=r"for other shards: '0.bias' is part . of 2 along dimens"):
        outer.optimizer.load_state_dict(saved)


def check_fewer_replicas_keep_the_sum_of_the_errors(me: Rank) -> None:
    """Each replica goes on alone; and as one of four shards it is refused."""
    folder = shared_folder(me)
    two = Outer(me, preset="sparseloco")
    two.steps(4)
    total = torch.cat([each.double().flatten() for each in two.saved("error")])
    dist.all_reduce(total, group=mesh()["replicate"].get_group())
    gtopk.save(two.optimizer, path_of(folder))
    alone, _ = dist.new_subgroups(1)
    one = Outer(me, sharded(network(7)), preset="sparseloco", group=alone)
    gtopk.load(one.optimizer, path_of(folder))
    assert equal(one.shared(), two.shared())
    errors = torch.cat([each.double().flatten() for each in one.saved("error")])
    assert torch.allclose(errors, total, rtol=0, atol=1e-6)
    assert equal(own_parts(one.model), own_parts(two.model)) == (me.rank < 2)
    four = sharded(network(7), DeviceMesh("cpu", torch.arange(4)))
    other = Outer(me, four, preset="sparseloco", group=alone)
    with pytest.raises(NotImplementedError, match=r"no shard-\d-of-4/outer.pt, but shard-0-of-2"):
        gtopk.load(other.optimizer, path_of(folder))
    state = gtopk.SparseState(network().named_parameters(), density=0.02)
    with pytest.raises(ValueError, match="is an OuterOptimizer's checkpoint"):
        gtopk.load(state, path_of(folder))
    dist.barrier()


def check_what_is_wrong_is_said_before_anything_is_sent(me: Rank) -> None:
    replicas = mesh()["replicate"].get_group()
    inside = r"rank \d is in the OuterOptimizer's group, but is of the same replica: it holds part"
    for group, over, message in (
        (mesh()["shard"].get_group(), mesh()["shard"], inside),
        (dist.group.WORLD, mesh()["shard"], inside),
        (
            replicas,
            mesh(),
            r"already replicated over rank \d of .* give fully_shard the mesh of the",
        ),
    ):
        model = sharded(network(), over)
        before = gtopk.stats(group)["messages_sent"]
        with pytest.raises(ValueError, match=message):
            Outer(me, model, group=group, preset="diloco")
        assert gtopk.stats(group)["messages_sent"] == before
    model = nn.Module()
    terms = DTensor.from_local(torch.zeros(2), mesh()["shard"], [Partial()])
    model.weight = nn.Parameter(terms)
    with pytest.raises(ValueError, match=r"the placements of 'weight' are .*Partial"):
        Outer(me, model, preset="diloco")


def check_ranks_that_do_not_fit_together_are_told(me: Rank) -> None:
    crossed = pairs((0, 3), (1, 2))
    with pytest.raises(
        ValueError, match=r"'0.weight' has .*, part (\d) of 2 .* and .*part .* on ra"
    ):
        Outer(me, group=crossed, preset="diloco")
    over = DeviceMesh("cpu", torch.tensor([[0, 3], [1, 2]]), mesh_dim_names=("replicate", "shard"))
    model = sharded(network(), over["shard"])
    with pytest.raises(
        ValueError, match=r"the rank in its group is \d of 2 here and \d of 2 on ra"
    ):
        Outer(me, model, group=pairs((0, 1), (2, 3)), preset="diloco")
    kind = ValueError if me.rank < 2 else RuntimeError
    with pytest.raises(kind, match=r"ranks of this replica do not agree .*: lr is 0\.[57] here"):
        Outer(me, preset="diloco", lr=0.5 if me.rank == 1 else 0.7)


def check_other_meshes_within_a_replica_train_and_go_on(me: Rank) -> None:
    """HSDP and FSDP2 under tensor parallelism, on all ranks; tensor parallelism alone, on two."""
    folder = shared_folder(me)
    four = DeviceMesh("cpu", torch.arange(4).view(2, 2), mesh_dim_names=("data", "tensor"))
    alone, _ = dist.new_subgroups(1)

    def made(kind: str, seed: int) -> Outer:
        model, group = network(seed), None if kind == "tensor" else alone
        if kind == "HSDP":
            sharded(model, four)
        else:
            over = mesh()["shard"] if kind == "tensor" else four["tensor"]
            plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
            parallelize_module(model, over, plan)
        if kind == "both":
            sharded(model, four["data"])
        return Outer(me, model, preset="sparseloco", clip="median", group=group)

    for kind in ("HSDP", "tensor", "both"):
        whole = made(kind, 0)
        whole.rank = me.rank if kind == "HSDP" else me.rank // 2  # a batch for each row
        whole.steps(4)
        gtopk.save(whole.optimizer, path_of(folder))
        resumed = made(kind, 7)
        gtopk.load(resumed.optimizer, path_of(folder))
        resumed.at, resumed.rank = whole.at, whole.rank
        for each in (whole, resumed):
            each.steps(2)
        assert equal(own_parts(whole.model), own_parts(resumed.model)), kind
        assert equal(own_parts(whole.model), whole.shared()), kind
        assert whole.optimizer.stats()["rounds"] == 2, kind
        mine = torch.cat([each.flatten() for each in whole.shared()])
        group = mesh()["replicate"].get_group()
        if kind != "both":  # the copies in the other half
            first = mine.clone()
            dist.broadcast(first, group=group, group_src=0)
            assert torch.equal(mine, first), kind


def check_the_pages_example_trains(me: Rank) -> None:
    section = PAGE.read_text(encoding="utf-8").split("\n## Sharded parameters")[1]
    code = textwrap.dedent(re.search(r"(?:^    .*\n)+", section, re.MULTILINE)[0])
    batches = [batch(me.rank, step) for step in range(31)]
    names = {"gtopk": gtopk, "torch": torch, "model": network(), "batches": batches}
    exec(code, {**names, "loss": nn.functional.cross_entropy}, found := {})
    assert found["outer"].stats()["rounds"] == 1


def test_on_four_ranks(four: RankSet, check) -> None:
    four.run(check)
