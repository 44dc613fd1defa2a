"""What gtopk.save wrote of shards, loaded by other shards and replicas."""

from __future__ import annotations

import os
import shutil

import pytest
import torch
import torch.distributed as dist
from gtopk.state.reshard import Cut
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gtopk
from helpers.checkpoints import path_of, shared_folder
from helpers.fsdp import Training
from helpers.parallel import batch, loss_of, network
from helpers.ranks import Rank, RankSet

pytestmark = pytest.mark.loopback

ARGUMENTS = {"density": 0.1, "momentum": 0.9, "select": "threshold"}
LEAST = 37  # elements: the weights have more, in four shards too, and the biases fewer


class Plain:
    """The same under DDP, over the first ranks."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.model = network()
        self.at = 0
        self.ddp = DistributedDataParallel(self.model, process_group=group)
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), lr=0.1)
        self.state = gtopk.attach(self.ddp, min_numel=LEAST, **ARGUMENTS)

    def step(self) -> None:
        self.optimizer.zero_grad()
        loss_of(self.ddp, batch(dist.get_rank(), self.at)).backward()
        self.optimizer.step()
        self.at += 1


def sums(state: gtopk.SparseState, kind: str, members: int) -> dict[str, torch.Tensor]:
    """Over the replicas, put together of shards that torch cuts."""
    mine = {name: each.clone() for name, each in state.state_dict()[kind].items()}
    every: list = [None] * members
    dist.all_gather_object(every, (mine, state.shard), group=group_of(members))
    found = {}
    for name, parameter in network().named_parameters():
        if name not in mine:
            continue
        total = torch.zeros_like(parameter)
        for theirs, shard in every:
            number, shards = shard or (0, 1)
            pieces = total.chunk(shards)  # views
            if number < len(pieces):
                numel = pieces[number].numel()
                pieces[number].add_(theirs[name].flatten()[:numel].view(pieces[number].shape))
                assert not theirs[name].flatten()[numel:].any()
        found[name] = total.detach()
    return found


GROUPS: dict[int, dist.ProcessGroup] = {}


def group_of(members: int) -> dist.ProcessGroup:
    return GROUPS[members]


# Replicas, and shards of each; None: under DDP.
CHAIN = [(2, 2), (4, 1), (2, 2), (1, 2), (2, None), (2, 2), (4, None), (1, 4), (3, 1), (2, 2)]


def check_sums_are_kept_whatever_the_shards(me: Rank) -> None:
    folder = shared_folder(me)
    for members in range(1, 5):
        GROUPS[members] = dist.new_group(list(range(members)))
    before: dict[str, dict[str, torch.Tensor]] = {}
    for number, (replicas, shards) in enumerate(CHAIN):
        members = replicas * (shards or 1)
        arguments = {**ARGUMENTS, "min_numel": LEAST, "shape": (replicas, shards)}
        if shards is not None:
            # A mesh, as a group, is made on all ranks.
            training = Training(me, **arguments) if me.rank < members else Outside(replicas, shards)
        elif me.rank < members:
            training = Plain(GROUPS[members])
        if me.rank < members:
            if number:
                assert gtopk.load(training.state, path_of(folder) / str(number - 1)) == ([], [])
                for kind, expected in before.items():
                    seen = sums(training.state, kind, members)
                    assert seen.keys() == expected.keys()
                    for name in seen:
                        torch.testing.assert_close(seen[name], expected[name], rtol=1e-5, atol=1e-6)
                    assert any(each.any() for each in seen.values())
                assert training.state.step == 3 * number
            for _ in range(3):
                training.step()
            gtopk.save(training.state, path_of(folder) / str(number))
            before = {
                kind: sums(training.state, kind, members) for kind in ("residuals", "momenta")
            }
        dist.barrier()
        box = [before]
        dist.broadcast_object_list(box)
        before = box[0]


class Outside:
    """A rank that is not in the mesh takes part in making its groups alone."""

    def __init__(self, replicas: int, shards: int) -> None:
        from torch.distributed.device_mesh import DeviceMesh

        ranks = torch.arange(replicas * shards).view(replicas, shards)
        DeviceMesh("cpu", ranks, mesh_dim_names=("replicate", "shard"))


def check_what_does_not_fit_is_named_on_every_rank(me: Rank) -> None:
    folder = shared_folder(me)
    path = path_of(folder)
    training = Training(me, **ARGUMENTS)
    training.step()
    gtopk.save(training.state, path / "two")
    dist.barrier()
    whole = Training(me, shape=(4, 1), **{**ARGUMENTS, "min_numel": 500})
    with pytest.raises(ValueError, match=r"'4\.weight' has a residual .* too small for one"):
        gtopk.load(whole.state, path / "two")
    assert gtopk.load(whole.state, path / "two", strict=False) == ([], [])
    other = Training(me, model=nn.Sequential(nn.Linear(24, 32)), shape=(4, 1))
    with pytest.raises(
        ValueError, match=r"'0\.weight' is \[32, 24\] .* and \[36, 24\] .* in the saved"
    ):
        gtopk.load(other.state, path / "two")
    if me.rank == 0:
        shutil.copytree(path / "two", path / "half")
        os.remove(path / "half" / "version-1" / "shard-1-of-2" / ".metadata")
        # As earlier versions of gtopk wrote it, twice.
        shutil.copytree(path / "two" / "version-1", path / "both")
        shutil.copytree(path / "both" / "shard-0-of-2", path / "both" / "shard-0-of-3")
    dist.barrier()
    before = training.state.state_dict()["residuals"]
    for which, state in (("half", whole.state), ("half", training.state)):
        with pytest.raises((FileNotFoundError, RuntimeError), match="shard-1-of-2"):
            gtopk.load(state, path / which)
    with pytest.raises((FileNotFoundError, RuntimeError), match="holds those of 2 and of 3 shards"):
        gtopk.load(whole.state, path / "both")
    after = training.state.state_dict()["residuals"]
    assert all(torch.equal(before[name], after[name]) for name in before)
    dist.barrier()


def test_on_four_ranks(four: RankSet, check) -> None:
    four.run(check)


@pytest.mark.parametrize("shape", [(7, 3), (3,), (1, 5), (8,), (2, 0), (4, 6)])
def test_shards_are_cut_as_torch_chunks_and_joined_to_the_whole(shape) -> None:
    whole = torch.randn(shape)
    for dim in range(len(shape)):
        for shards in range(1, 6):
            if dim and shape[dim] % shards:
                continue  # FSDP takes no such
            cuts = [Cut(shape, dim, number, shards) for number in range(shards)]
            pieces = [each.piece(whole) for each in cuts]
            assert len({each.numel() for each in pieces}) == 1
            for piece, expected in zip(pieces, whole.chunk(shards, dim), strict=False):
                assert torch.equal(piece[: expected.numel()], expected.flatten())
                assert not piece[expected.numel() :].any()
            assert torch.equal(cuts[0].whole(pieces), whole)
