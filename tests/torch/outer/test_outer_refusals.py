"""``gtopk.OuterOptimizer``: what it refuses, before anything is sent."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import gtopk
from helpers.outer import INNER, Outer, inner_of
from helpers.ranks import Rank, RankSet
from helpers.training import batch, network, replicas_are_bitwise_equal

pytestmark = pytest.mark.loopback


def check_replicas_that_are_not_alike_are_told(me: Rank) -> None:
    with pytest.raises(ValueError, match=r"lr is 0\.[57] here and 0\.[57] on rank"):
        Outer(me.rank, preset="diloco", lr=0.5 if me.rank == 1 else 0.7)
    with pytest.raises(ValueError, match=r"'weight' has shape \[\d, 2\]"):
        Outer(me.rank, nn.Linear(2, 2 + (me.rank == 1)), preset="diloco")
    Outer(me.rank, preset="diloco").steps(INNER)


def check_a_state_of_another_run_is_refused(me: Rank) -> None:
    outer = Outer(me.rank, preset="diloco")
    saved = outer.optimizer.state_dict()
    for damage, message in (
        ({"format": 9}, "has format 9, not 1"),
        ({"place": {"rank": 0, "ranks": 9}}, "one of 9 ranks, but this run has 4"),
        ({"settings": {**saved["gtopk"]["settings"], "lr": 1.0}}, "lr=1.0, .* lr=0.7"),
        ({"velocity": {}}, "'0.bias' is here, but not saved"),
        ({"parameters": {**saved["gtopk"]["parameters"], "0.bias": 3}}, r"shape \[64\], has 3"),
        ({"rounds": None}, "rounds"),
    ):
        with pytest.raises(ValueError, match=message):
            outer.optimizer.load_state_dict({**saved, "gtopk": {**saved["gtopk"], **damage}})
    with pytest.raises(ValueError, match="not a saved OuterOptimizer: it is not a dict"):
        outer.optimizer.load_state_dict({**saved, "gtopk": 3})
    plain = inner_of(network())
    outer.optimizer.load_state_dict(plain.state_dict())
    with pytest.raises(ValueError, match="inner must be a plain optimizer, given an Outer"):
        gtopk.OuterOptimizer(outer.optimizer, outer.model)
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.deepcopy(outer.optimizer)
    with pytest.raises(ValueError, match="an OuterOptimizer takes no new parameters: add the gro"):
        outer.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    assert repr(outer.optimizer).startswith("OuterOptimizer(AdamW (")
    assert repr(outer.optimizer).endswith("preset='diloco')")


REFUSED = [
    ({"preset": "adam"}, ValueError, "preset='adam' is unknown; available: 'localsgd', 'dil"),
    ({"preset": "demo", "lr": 1.0}, ValueError, "preset='demo' takes no 'lr': it exchanges grad"),
    ({"preset": "pulseloco", "k": 3}, ValueError, "preset='pulseloco' takes no 'k': it sends wh"),
    ({"inner_step": 3}, TypeError, "unexpected argument 'inner_step'; available: 'inner_steps'"),
    ({"grace": 2.0}, ValueError, r"grace=2.0 needs a gtopk.ReplicaGroup"),
    ({"grace": -1.0}, ValueError, "grace must be a finite number of 0 or more"),
    ({"quorum": 0}, ValueError, "quorum must be a whole number, 1 or more, given 0"),
    ({"quorum": 5}, ValueError, "quorum=5 is more than the number of replicas, 4"),
    ({"preset": "localsgd", "quorum": 2}, ValueError, "preset='localsgd' takes no 'quorum'"),
    ({"clip": "median"}, ValueError, "clip='median' needs a selection"),
    ({"clip": "mean"}, ValueError, "clip='mean' is unknown; available: None, 'median'"),
    (
        {"preset": "sparseloco", "clip": "median", "algorithm": "exact"},
        ValueError,
        "clip='median' needs algorithm='topk', given 'exact'",
    ),
    ({"preset": "localsgd", "lr": 1.0}, ValueError, "preset='localsgd' takes no 'lr': it averages"),
    ({"inner_steps": 0}, ValueError, "inner_steps must be a whole number, 1 or more"),
    ({"lr": 0.0}, ValueError, "lr must be a finite number above 0"),
    ({"lr": float("nan")}, ValueError, "lr must be a finite number above 0"),
    ({"decay": -1}, ValueError, "decay must be a finite number of 0 or more"),
    ({"momentum": 1.0}, ValueError, r"momentum must be a number in \[0, 1\)"),
    ({"momentum": 0.0, "nesterov": True}, ValueError, "nesterov=True needs a momentum above 0"),
    ({"nesterov": 1}, ValueError, "nesterov must be True or False"),
    ({"error_decay": 0.9}, ValueError, "needs a selection .* or a wire that rounds"),
    ({"wire": "int8", "error_decay": 1.5}, ValueError, "error_decay must be at most 1"),
    ({"subtract": 0.5, "wire": "int8"}, ValueError, "subtract=0.5 needs a selection"),
    ({"transform": "tiles"}, ValueError, "transform='tiles' needs a selection"),
    ({"mean": "contributors"}, ValueError, "mean='contributors' needs a selection"),
    ({"mean": "all"}, ValueError, "mean='all' is unknown; available: 'participants'"),
    ({"wire": "3bit"}, ValueError, "wire='3bit' is unknown"),
    ({"wire": "statistical-2bit"}, NotImplementedError, "wire='2bit' loses less"),
    ({"algorithm": "topk"}, ValueError, "algorithm='topk' needs k= or density="),
    ({"k": 5000}, ValueError, "k must be at most 4096"),
    ({"k": 5, "density": 0.1}, ValueError, "give k= or density=, not both"),
    ({"density": 2}, ValueError, r"density must be a number in \(0, 1\]"),
    ({"mix": 1.0}, ValueError, "mix must be below 1"),
    ({"fragments": 4}, ValueError, "fragments=4 needs as many inner_steps in a round, given 3"),
    ({"delay": 3}, ValueError, "delay=3 must be below 3, the fewest steps between two turns"),
    ({"fragments": 2, "delay": 1}, ValueError, "delay=1 must be below 1, the fewest"),
    ({"inner_steps": 9, "fragments": 8}, ValueError, "needs as many layers, .* the model has 6"),
    ({"preset": "sparseloco", "algorithm": "dense"}, ValueError, "does not sum selections"),
    ({"preset": "sparseloco", "algorithm": "rs-ag"}, ValueError, "'2bit'"),
    (
        {"preset": "sparseloco", "algorithm": "rs-ag", "wire": "int8"},
        ValueError,
        "mean='contributors' needs algorithm='topk' or 'exact'",
    ),
]


def check_arguments_are_refused_before_anything_is_sent(me: Rank) -> None:
    """On one replica alone: the others do not even call it."""
    if me.rank:
        return
    for arguments, kind, message in REFUSED:
        with pytest.raises(kind, match=message):
            Outer(me.rank, **{"preset": "diloco", **arguments})
    model = network()
    inner = inner_of(model)
    frozen = nn.Linear(2, 2)
    of_the_bias = torch.optim.SGD([frozen.bias], lr=0.1)
    frozen.bias.requires_grad_(False)
    for given, message in (
        ((of_the_bias, frozen), "the inner optimizer trains no parameter of the model"),
        ((inner, [*model.parameters()]), "model must be a torch.nn.Module, given list"),
        ((model, model), "inner must be a torch.optim.Optimizer, given Sequential"),
        ((inner, network()), r"11 parameters of the inner optimizer are not the model's"),
        ((inner, model.requires_grad_(False)), "no parameter that requires a gradient"),
    ):
        with pytest.raises(ValueError, match=message):
            gtopk.OuterOptimizer(*given)


def check_ddp_over_the_same_replicas_is_refused(me: Rank) -> None:
    ddp = DistributedDataParallel(network())
    with pytest.raises(ValueError, match="DDP already averages each gradient"):
        gtopk.OuterOptimizer(inner_of(ddp), ddp)
    pair = dist.new_subgroups(2)[0]
    across, _ = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])
    ddp = DistributedDataParallel(network(), process_group=pair)
    with pytest.raises(NotImplementedError, match="replicas of ranks that DDP joins"):
        gtopk.OuterOptimizer(inner_of(ddp), ddp, group=gtopk.ReplicaGroup())
    outer = gtopk.OuterOptimizer(inner_of(ddp), ddp, group=across, inner_steps=2)
    for step in range(4):
        x, labels = batch(me.rank, step)
        outer.zero_grad()
        nn.functional.cross_entropy(ddp(x), labels).backward()
        outer.step()
    assert outer.stats()["participants"] == 2
    assert replicas_are_bitwise_equal(ddp.module)


def check_parameters_sharded_over_different_ranks_are_refused(me: Rank) -> None:
    """The first layer's shards are on this rank and its neighbour, the next one's on others."""
    over = DeviceMesh("cpu", torch.arange(4).view(2, 2), mesh_dim_names=("replicate", "shard"))
    across, _ = dist.new_subgroups_by_enumeration([[0, 3], [1, 2]])
    model = network()
    fully_shard(model[0], mesh=over["shard"])
    fully_shard(model[2], mesh=over["replicate"])
    with pytest.raises(NotImplementedError, match="sharded over different ranks is not"):
        gtopk.OuterOptimizer(inner_of(model), model, "diloco", across)


def test_on_four_ranks(four: RankSet, check) -> None:
    four.run(check)
