"""``gtopk.fsdp_hook``: FSDP2 on two shards, two replicas of each."""

from __future__ import annotations

import math
import tempfile

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import gtopk
from helpers.fsdp import Training
from helpers.parallel import loss_of, network, trained_alone, whole
from helpers.ranks import Rank, RankSet
from helpers.training import equal

pytestmark = pytest.mark.loopback


def check_density_one_trains_as_dense(me: Rank) -> None:
    expected = trained_alone(me.size).state_dict()
    for arguments in ({"density": 1.0}, {"warmup": [("dense", 5)]}):
        training = Training(me, **arguments)
        for _ in range(3):
            training.step()
        for name, value in whole(training.model).items():
            torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-6)
        assert training.replicas_are_bitwise_equal()
        assert training.state.step == 3
    units = [set(each.names) for each in training.state.units]
    assert units == [
        {f"{i}.{kind}" for i in of for kind in ("weight", "bias")} for of in ((2,), (0, 4))
    ]


def check_modules_choose_their_densities(me: Rank) -> None:
    """Each on its own: FSDP reduces modules one by one. Replicas of a shard choose alike."""
    training = Training(me, density="adaptive", density_bounds=(0.05, 0.5))
    before = training.state.units
    for _ in range(9):
        training.step()
    layers = training.state.layers
    assert training.state.units == before
    assert [each.names for each in layers] == [unit.names for unit in before]
    both: list = [None, None]
    dist.all_gather_object(both, layers, group=training.replicas)
    assert both[0] == both[1]
    assert max(layers, key=lambda each: each.ready).density == 0.05  # nothing to hide behind
    assert training.replicas_are_bitwise_equal()


def check_residuals_of_updates_train_alike_at_one_rate(me: Rank) -> None:
    """Multiplying and dividing by a power of two is exact."""
    found = []
    for accumulate in ("gradient", "update"):
        training = Training(me, density=0.1, accumulate=accumulate, lr=0.125)
        for _ in range(6):
            training.step()
        residual = training.state.residual("2.weight").clone()
        found.append((training.shards(), residual * (8 if accumulate == "update" else 1)))
    assert equal(found[0][0], found[1][0])
    assert found[0][1].any()
    assert torch.equal(found[0][1], found[1][1])


def with_norm() -> nn.Sequential:
    """In the last unit small parameters come before large ones and after them."""
    torch.manual_seed(5)
    return nn.Sequential(
        nn.LayerNorm(24), nn.Linear(24, 36), nn.ReLU(), nn.Linear(36, 20), nn.LayerNorm(20)
    )


def check_no_gradient_mass_is_lost(me: Rank) -> None:
    """Also if FSDP reads results at once: with an existing .grad, or a cast type."""
    for policy, times in (
        (None, 1),
        (None, 2),
        (MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32), 1),
        (MixedPrecisionPolicy(param_dtype=torch.bfloat16), 1),
        (MixedPrecisionPolicy(param_dtype=torch.float16), 2),
        (MixedPrecisionPolicy(reduce_dtype=torch.float64), 1),
    ):
        training = Training(me, model=with_norm(), policy=policy, density=0.1)
        state = training.state
        arrived: dict[int, torch.Tensor] = {}
        arrive = state.backward.source.arrive

        def listening(index, output, names, divisor, times, arrived=arrived, arrive=arrive) -> None:
            arrived[index] = output.double() / divisor
            arrive(index, output, names, divisor, times)

        state.backward.source.arrive = listening
        for _ in range(3):
            training.optimizer.zero_grad()
            given = {}
            before = state.state_dict()["residuals"]
            for _ in range(times):
                training.backward()
                for index, unit in enumerate(state.units):
                    sizes = {each.name: each.numel for each in (*unit.large, *unit.small)}
                    order = [n for n, _ in training.model.named_parameters() if n in sizes]
                    parts = arrived[index].double().split([sizes[name] for name in order])
                    for name, mine in zip(order, parts, strict=True):
                        given[name] = given.get(name, 0) + mine
            after = state.state_dict()["residuals"]
            for name, parameter in training.model.named_parameters():
                grad = parameter.grad.to_local().flatten().double()
                acc = given[name] + before.get(name, 0)
                dist.all_reduce(acc, group=training.replicas)
                left = after[name].double() if name in after else torch.zeros_like(given[name])
                dist.all_reduce(left, group=training.replicas)
                n = grad.numel()
                torch.testing.assert_close(2 * grad + left[:n], acc[:n], rtol=1e-5, atol=1e-5)
                assert not left[n:].any()
            training.optimizer.step()
        assert training.replicas_are_bitwise_equal()
        assert any(each.any() for each in after.values())
        assert state.step == 3 * times


def check_replicas_begin_alike_and_stay_so(me: Rank) -> None:
    torch.manual_seed(me.rank)
    model = nn.Sequential(nn.Linear(24, 40), nn.ReLU(), nn.Linear(40, 6))
    training = Training(me, model=model, density=0.05, algorithm="rs-ag", wire="bf16", momentum=0.9)
    assert training.replicas_are_bitwise_equal()
    losses = [training.step() for _ in range(30)]
    assert training.replicas_are_bitwise_equal()
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


def check_a_step_that_is_not_finite_or_skipped(me: Rank) -> None:
    training = Training(me, density=0.1)
    training.step()
    before = training.state.state_dict()["residuals"]
    with torch.no_grad():
        x = torch.full((8, 24), math.nan if me.rank == 3 else 1.0)
    training.optimizer.zero_grad()
    loss_of(training.model, x).backward()
    after = training.state.state_dict()["residuals"]
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(
        each.grad.to_local().isnan().any() or not each.grad.to_local().numel()
        for each in training.model.parameters()
        if each.numel() > 100
    )
    training.optimizer.zero_grad()
    training.backward()
    unskipped = training.state.state_dict()["residuals"]
    training.state.skip()
    skipped = training.state.state_dict()["residuals"]
    moved = any(not torch.equal(unskipped[name], skipped[name]) for name in skipped)
    assert moved == (me.rank < 2)  # on the first replica


def check_a_run_that_is_resumed_goes_on_bit_for_bit(me: Rank) -> None:
    import torch.distributed.checkpoint as dcp

    made = tempfile.TemporaryDirectory() if me.rank == 0 else None
    folder = [made.name if made else None]
    dist.broadcast_object_list(folder)
    arguments = {"density": 0.05, "momentum": 0.9, "select": "threshold"}
    first = Training(me, **arguments)
    for _ in range(4):
        first.step()
    replica = f"{folder[0]}/replica-{me.rank // 2}"
    shards = first.mesh["shard"].get_group()
    dcp.save(first.model.state_dict(), checkpoint_id=replica, process_group=shards)
    gtopk.save(first.state, f"{folder[0]}/gtopk")
    again = Training(me, model=network(), **arguments)
    with torch.no_grad():
        for each in again.model.parameters():
            each.zero_()
    saved = again.model.state_dict()
    dcp.load(saved, checkpoint_id=replica, process_group=shards)
    again.model.load_state_dict(saved)
    assert gtopk.load(again.state, f"{folder[0]}/gtopk") == ([], [])
    again.at = first.at
    for _ in range(4):
        assert first.step() == again.step()
    assert equal(first.shards(), again.shards())
    one, other = first.state.state_dict(), again.state.state_dict()
    for kind in ("residuals", "momenta"):
        assert equal([*one[kind].values()], [*other[kind].values()])
    assert one["place"] == {"rank": me.rank // 2, "ranks": 2, "shard": me.rank % 2, "shards": 2}
    one["place"]["shard"] = 1 - one["place"]["shard"]
    with pytest.raises(ValueError, match=f"that of shard {1 - me.rank % 2} of 2, but this one"):
        again.state.load_state_dict(one)
    dist.barrier()
    if made:
        made.cleanup()


def check_what_it_cannot_take_is_named(me: Rank) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    replicas, shards = mesh["replicate"], mesh["shard"]
    with pytest.raises(ValueError, match=r"a model that fully_shard was called on \(FSDP2\)"):
        gtopk.fsdp_hook(network(), replicas)
    with pytest.raises(ValueError, match="is replicated by FSDP itself"):
        gtopk.fsdp_hook(fully_shard(network(), mesh=mesh), replicas)
    model = fully_shard(network(), mesh=shards)
    with pytest.raises(ValueError, match="or a mesh of one dimension"):
        gtopk.fsdp_hook(model, mesh)
    with pytest.raises(ValueError, match="holds another shard of the same replica"):
        gtopk.fsdp_hook(model, shards)
    with pytest.raises(ValueError, match="does not take unit="):
        gtopk.fsdp_hook(model, replicas, unit="model")
    with pytest.raises(ValueError, match="not gtopk"):
        gtopk.fsdp_hook(model, gloo_replicas(me))
    with pytest.raises(ValueError, match="is sharded by FSDP"):
        gtopk.SparseState(model.named_parameters())
    dist.barrier()


def gloo_replicas(me: Rank) -> dist.ProcessGroup:
    groups = [dist.new_group([shard, shard + 2], backend="gloo") for shard in (0, 1)]
    return groups[me.rank % 2]


def digits(rank: int) -> tuple[torch.Tensor, ...]:
    """Every third image is for the test; each rank gets a fourth of the others."""
    from sklearn.datasets import load_digits

    data = load_digits()
    x = torch.tensor(data.data, dtype=torch.float32) / 16
    y = torch.tensor(data.target)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(1))
    test, train = order[::3], order[1::3]
    mine = torch.cat([train, order[2::3]])[rank::4]
    return x[mine], y[mine], x[test], y[test]


def check_digits(me: Rank, seed: int) -> dict[bool, float]:
    """Accuracy of dense training and of sparse training."""
    x, y, test_x, test_y = digits(me.rank)
    accuracy = {}
    for dense in (True, False):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 10))
        training = Training(
            me, model=model, dense=dense, lr=0.5, density=0.02, warmup=[("dense", 20)]
        )
        generator = torch.Generator().manual_seed(4 * seed + me.rank)
        for _ in range(300):
            batch = torch.randint(len(y), (32,), generator=generator)
            training.optimizer.zero_grad()
            nn.functional.cross_entropy(training.model(x[batch]), y[batch]).backward()
            training.optimizer.step()
        if not dense:
            assert training.replicas_are_bitwise_equal()
        with torch.no_grad():
            accuracy[dense] = (training.model(test_x).argmax(1) == test_y).double().mean().item()
    return accuracy


@pytest.mark.long
def test_digits_are_learnt_within_a_point_of_dense(four: RankSet) -> None:
    of_seeds = [four.run(check_digits, seed)[0] for seed in range(5)]
    dense, sparse = (sum(each[kind] for each in of_seeds) / 5 for kind in (True, False))
    print(f"dense {dense:.4f}, sparse {sparse:.4f}; {of_seeds}")
    assert dense > 0.9
    assert sparse > dense - 0.01, of_seeds


def test_on_four_ranks(four: RankSet, check) -> None:
    four.run(check)
