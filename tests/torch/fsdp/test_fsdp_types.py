"""``gtopk.fsdp_hook`` with FSDP's mixed precision, and under tensor parallelism,
beside the same trained densely over gloo.
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import gtopk
from helpers.fsdp import Training, summed
from helpers.fsdp_parts import Beside, grad_scaler
from helpers.parallel import batch, loss_of, network
from helpers.ranks import Rank, RankSet

pytestmark = pytest.mark.loopback

HALF, BRAIN, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64
MIXES = [
    MixedPrecisionPolicy(param_dtype=param, reduce_dtype=reduce, output_dtype=output)
    for param, reduce in itertools.product((None, BRAIN, HALF), (None, SINGLE, BRAIN, HALF, DOUBLE))
    for output in ((None, SINGLE) if param else (None,))
]
STEPS = 2
NORM = 0.05


def over_gloo(shape: tuple[int, ...], names: tuple[str, ...]) -> DeviceMesh:
    override = dict.fromkeys(names, "gloo")
    return init_device_mesh("cpu", shape, mesh_dim_names=names, backend_override=override)


def network_for(policy: MixedPrecisionPolicy) -> nn.Sequential:
    """With an output type one FSDP module, as another one inside would change its input's type."""
    return network()[2:] if policy.output_dtype else network()


def inputs(me: Rank, step: int, policy: MixedPrecisionPolicy) -> torch.Tensor:
    x = batch(me.rank, step)
    return torch.cat([x, x], 1)[:, :36] if policy.output_dtype else x


def trained_over_gloo(
    me: Rank, mesh: DeviceMesh, policy: MixedPrecisionPolicy, factor
) -> nn.Module:
    model = network_for(policy)
    if not policy.output_dtype:
        fully_shard(model[2], mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    summed(model)
    divide(model, factor)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, inputs(me, step, policy)).backward()
        optimizer.step()
    return model


def divide(model: nn.Module, factor: float | None) -> None:
    for module in model.modules():
        if factor and hasattr(module, "set_gradient_divide_factor"):
            module.set_gradient_divide_factor(factor)


def check_every_mix_of_types_trains_as_over_gloo(me: Rank) -> None:
    mesh = over_gloo((2, 2), ("replicate", "shard"))
    for number, policy in enumerate(MIXES):
        # 8 is divided by 4 before FSDP's reduce-scatter in float16, by 2 after it.
        factor = 8.0 if number % 2 else None
        training = Training(me, model=network_for(policy), policy=policy, density=1.0)
        divide(training.model, factor)
        for step in range(STEPS):
            training.optimizer.zero_grad()
            loss_of(training.model, inputs(me, step, policy)).backward()
            training.optimizer.step()
        expected = trained_over_gloo(me, mesh, policy, factor).state_dict()
        reduced = {policy.param_dtype or SINGLE, policy.reduce_dtype or SINGLE}
        loose = 2e-3 if BRAIN in reduced else 5e-4 if HALF in reduced else 1e-5
        for name, value in training.model.state_dict().items():
            torch.testing.assert_close(
                value.full_tensor(), expected[name].full_tensor(), rtol=loose, atol=loose
            )
        assert training.replicas_are_bitwise_equal(), policy


def check_types_with_a_loss_scale_momentum_and_a_norm(me: Rank) -> None:
    """What FSDP has reduced is accumulated, sent and delivered in float32."""
    for policy, case in itertools.product(
        (
            MixedPrecisionPolicy(param_dtype=HALF),
            MixedPrecisionPolicy(param_dtype=HALF, reduce_dtype=SINGLE),
            MixedPrecisionPolicy(reduce_dtype=BRAIN),
        ),
        ({"momentum": 0.9}, {"clipping": {"clip_norm": 0.05}}),
    ):
        scaler = grad_scaler(2.0**4)
        beside = Beside(me, model=network(), scaler=scaler, fsdp={"policy": policy}, **case)
        divide(beside.training.model, 8.0)
        for step in range(3):
            beside.training.optimizer.zero_grad()
            beside.backward(beside.training.model(batch(me.rank, step)).float().square().mean())
            beside.check()
            beside.step()
        assert beside.training.replicas_are_bitwise_equal(), policy
        assert any(each.any() for each in beside.state.state_dict()["residuals"].values())


def check_an_overflow_in_float16_stops_all(me: Rank) -> None:
    policy = MixedPrecisionPolicy(param_dtype=HALF)
    scaler = grad_scaler(2.0**24)
    training = Training(me, policy=policy, density=0.1, scaler=scaler, momentum=0.9)
    before = training.shards()
    loss = training.model(batch(me.rank, 0)).float().square().mean()
    scaler.scale(loss).backward()
    scaler.step(training.optimizer)
    scaler.update()
    assert all(map(torch.equal, training.shards(), before))
    saved = training.state.state_dict()
    assert not any(
        each.any() for each in (*saved["residuals"].values(), *saved["momenta"].values())
    )
    assert scaler.get_scale() == 2.0**23


def normed() -> nn.Sequential:
    """A column-wise and a row-wise layer, and what tensor parallelism leaves whole."""
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Linear(24, 36), nn.ReLU(), nn.Linear(36, 20), nn.LayerNorm(20), nn.Linear(20, 10)
    )


class Parallel:
    """Replicas of a model that lies on two ranks by tensor parallelism, on others by FSDP."""

    def __init__(self, mesh: DeviceMesh, *, dense: bool = False, **arguments) -> None:
        self.mesh, self.model = mesh, normed()
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        parallelize_module(self.model, mesh["tensor"], plan)
        data = mesh["replicate", "shard"] if dense else mesh["shard"]
        fully_shard(self.model[2], mesh=data)
        fully_shard(self.model, mesh=data)
        if dense:
            summed(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        if not dense:
            self.state = gtopk.fsdp_hook(
                self.model, mesh["replicate"], **{"min_numel": 30, **arguments}
            )

    def step(self, number: int) -> float:
        shards = self.mesh["shard"].size()
        own = shards * self.mesh.get_local_rank("replicate") + self.mesh.get_local_rank("shard")
        self.optimizer.zero_grad()
        loss = loss_of(self.model, batch(own, number))
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def whole(self) -> dict[str, torch.Tensor]:
        return {name: each.full_tensor() for name, each in self.model.state_dict().items()}


def check_tensor_parallelism(me: Rank, shards: int = 1) -> None:
    shape, names = (2, shards, 2), ("replicate", "shard", "tensor")
    dense = Parallel(over_gloo(shape, names), dense=True)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    full = Parallel(mesh, density=1.0)
    sparse = Parallel(mesh, density=0.1, momentum=0.5, scaler=torch.amp.GradScaler(enabled=False))
    losses = []
    for step in range(8):
        losses.append(sparse.step(step))
        if step < 3:
            dense.step(step)
            full.step(step)
    expected = dense.whole()
    for name, value in full.whole().items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-6)
    assert sum(losses[-2:]) < sum(losses[:2])
    for training in (full, sparse):
        # Every rank has the same whole, so replicas are equal, and so are copies.
        mine = torch.cat([each.flatten() for each in training.whole().values()])
        copies = [
            each.to_local().detach().flatten()
            for name, each in training.model.named_parameters()
            if name in ("2.bias", "3.weight", "3.bias", "4.weight", "4.bias")
        ]
        parts = [torch.empty_like(mine) for _ in range(me.size)]
        dist.all_gather(parts, mine)
        assert all(torch.equal(each, mine) for each in parts)
        held = torch.cat(copies)
        parts = [torch.empty_like(held) for _ in range(2)]
        dist.all_gather(parts, held, group=mesh["tensor"].get_group())
        assert torch.equal(*parts)
    selected = {each.name for unit in sparse.state.units for each in unit.large}
    assert selected == {"0.weight", "2.weight"}


def check_the_norm_under_tensor_parallelism(me: Rank, shards: int = 1) -> None:
    """All of it is sent: the mean of the replicas' gradients, each clipped at c / sqrt(2)."""
    mesh = init_device_mesh("cpu", (2, shards, 2), mesh_dim_names=("replicate", "shard", "tensor"))
    for clip in ("model", "unit"):
        training = Parallel(mesh, density=1.0, clip_norm=NORM, clip=clip)
        alone = normed()
        optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
        # Both modules that fully_shard was called on: parameters of the one, and all others.
        parts = [[*alone.parameters()]]
        if clip == "unit":
            inner = [*alone[2].parameters()]
            parts = [inner, [each for each in parts[0] if not any(each is one for one in inner)]]
        for step in range(3):
            of_replicas = []
            for replica in range(2):
                alone.zero_grad()
                for own in range(shards * replica, shards * replica + shards):
                    (loss_of(alone, batch(own, step)) / shards).backward()
                for part in parts:
                    norm = nn.utils.clip_grad_norm_(part, NORM / math.sqrt(2))
                    assert norm > NORM / math.sqrt(2)
                of_replicas.append([each.grad.clone() for each in alone.parameters()])
            for each, one, other in zip(alone.parameters(), *of_replicas, strict=True):
                each.grad = (one + other) / 2
            optimizer.step()
            training.step(step)
            whole = training.whole()
            for name, expected in alone.state_dict().items():
                torch.testing.assert_close(whole[name], expected, rtol=1e-5, atol=1e-6)


def test_on_four_ranks(four: RankSet, check) -> None:
    four.run(check)


def test_tensor_parallelism_on_four_ranks(four: RankSet) -> None:
    four.run(check_tensor_parallelism)


def test_the_norm_under_tensor_parallelism_on_four_ranks(four: RankSet) -> None:
    four.run(check_the_norm_under_tensor_parallelism)


@pytest.mark.long
def test_tensor_parallelism_and_shards_on_eight_ranks() -> None:
    with RankSet(8) as ranks:
        ranks.run(check_tensor_parallelism, 2)
        ranks.run(check_the_norm_under_tensor_parallelism, 2)
