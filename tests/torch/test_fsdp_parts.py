"""``gtopk.fsdp_hook`` with a loss scale, clipping, and parameters that got no
gradient: each shard beside a DDP over its replicas, of flat parameters that get the same gradients.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist
from ranks import Rank, RankSet
from test_fsdp import Training, equal
from test_parallel import batch, loss_of, network
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import gtopk

pytestmark = pytest.mark.loopback

NORM = 0.2  # smaller than a replica's at the beginning


def grad_scaler(scale: float = 2.0**10) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=2)


class Given(nn.Module):
    """Flat parameters, each of whose gradients is what it is given."""

    def __init__(self, sizes: dict[str, int]) -> None:
        super().__init__()
        for name, numel in reversed(sizes.items()):
            self.register_parameter(name.replace(".", "_"), nn.Parameter(torch.zeros(numel)))

    def forward(self, given: dict[str, torch.Tensor]) -> torch.Tensor:
        named = dict(self.named_parameters())
        return sum((named[name.replace(".", "_")] * each).sum() for name, each in given.items())


class Beside:
    """A training under FSDP2, and what DDP makes of what arrives at this rank's shards."""

    def __init__(
        self, me: Rank, *, scaler=None, model=None, clipping=None, fsdp=None, **arguments
    ) -> None:
        """fsdp: what DDP's SparseState is not given."""
        arguments = {"density": 0.1, **arguments}
        self.clipping, fsdp = clipping or {}, fsdp or {}
        self.scaler = scaler
        self.training = Training(
            me, model=model, scaler=scaler, **self.clipping, **fsdp, **arguments
        )
        self.state = self.training.state
        self.sizes = [
            {name: self.numel(name) for name in order}
            for order in self.state.backward.source._orders
        ]
        self.ddp = DistributedDataParallel(
            Given({name: n for unit in self.sizes for name, n in unit.items()}),
            process_group=self.training.replicas,
            find_unused_parameters="find_unused_modules" in fsdp,
        )
        largest = max(sum(unit.values()) for unit in self.sizes)
        self.expected = gtopk.attach(
            self.ddp, unit=4 * largest, scaler=scaler, **{"min_numel": 30, **arguments}
        )
        assert [each.selected_numel for each in self.expected.units] == [
            each.selected_numel for each in self.state.units
        ]
        self.arrived: dict[str, torch.Tensor] = {}
        arrive = self.state.backward.source.arrive

        def listening(index: int, output: torch.Tensor, names, divisor, times) -> None:
            names = list(self.sizes[index]) if names is None else names
            gradients = output.float() if divisor == times else output.float() / (divisor / times)
            parts = gradients.clone().split([self.sizes[index][name] for name in names])
            for name, part in zip(names, parts, strict=True):
                self.arrived[name] = self.arrived.get(name, 0) + part
            arrive(index, output, names, divisor, times)

        self.state.backward.source.arrive = listening

    def numel(self, name: str) -> int:
        return next(
            each.numel
            for unit in self.state.units
            for each in (*unit.large, *unit.small)
            if each.name == name
        )

    def accumulate(self, losses: list[torch.Tensor]) -> None:
        """Backwards that nothing follows there."""
        self.arrived.clear()
        for loss in losses:
            (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def backward(self, loss: torch.Tensor, unused=(), *, kept=False) -> None:
        """One backward here and there; what is not handed to FSDP's hook is zeros there.

        unused: units that no rank uses; kept: whether what accumulate() has handed over counts.
        """
        if not kept:
            self.arrived.clear()
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        given = {
            name: self.arrived.get(name, torch.zeros(n))
            for number, unit in enumerate(self.sizes)
            for name, n in unit.items()
            if number not in unused
        }
        if self.clipping.get("clip", "model") == "model":
            self.clip(list(given.values()))
        else:
            for number, unit in enumerate(self.sizes):
                if number not in unused:
                    self.clip([given[name] for name in unit])
        self.ddp.zero_grad()
        self.ddp(given).backward()

    def clip(self, gradients: list[torch.Tensor]) -> None:
        """To the norm over both shards of this replica."""
        if not self.clipping:
            return
        scale = 1.0 if self.scaler is None else self.scaler.get_scale()
        square = sum((each.double() / scale).square().sum() for each in gradients)
        dist.all_reduce(square, group=self.training.mesh["shard"].get_group())
        most = self.clipping["clip_norm"] / math.sqrt(2)
        if square.sqrt() > most:
            for each in gradients:
                each.mul_(most / square.sqrt().item())

    def check(self, before: dict[str, torch.Tensor] | None = None) -> None:
        """Results, residuals and momenta. before: what results were added to."""
        same = self.same if self.clipping or before else torch.equal
        for name, parameter in self.training.model.named_parameters():
            if self.given(name).grad is None:
                assert parameter.grad is None, name
                continue
            mine = parameter.grad.to_local().flatten()
            theirs = self.given(name).grad[: mine.numel()]
            if before is not None:
                theirs = theirs + before[name]
            assert same(mine, theirs), name
        one, other = self.state.state_dict(), self.expected.state_dict()
        for kind in ("residuals", "momenta"):
            for name, each in one[kind].items():
                assert same(each, other[kind][name.replace(".", "_")]), (kind, name)
        assert self.state.step == self.expected.step

    def given(self, name: str) -> torch.Tensor:
        return getattr(self.ddp.module, name.replace(".", "_"))

    @staticmethod
    def same(one: torch.Tensor, other: torch.Tensor) -> bool:
        return torch.allclose(one, other, rtol=1e-4, atol=1e-4 * max(1.0, other.abs().max().item()))

    def step(self) -> None:
        if self.scaler is None:
            self.training.optimizer.step()
        else:
            self.scaler.step(self.training.optimizer)
            self.scaler.update()


CASES = {
    "a loss scale": {"scaler": True},
    "a loss scale and momentum": {"scaler": True, "momentum": 0.9, "warmup": [("dense", 2)]},
    "the whole norm": {"clipping": {"clip_norm": NORM}},
    "a norm for each unit": {"clipping": {"clip_norm": NORM, "clip": "unit"}, "momentum": 0.9},
    "a loss scale and a norm": {"scaler": True, "clipping": {"clip_norm": NORM}},
}


def cases(me: Rank, model) -> list[tuple[str, Beside]]:
    made = []
    for name, case in CASES.items():
        case = dict(case)
        if case.pop("scaler", False):
            case["scaler"] = grad_scaler()
        made.append((name, Beside(me, model=model(), **case)))
    return made


def check_every_shard_is_as_under_ddp(me: Rank) -> None:
    for name, beside in cases(me, network):
        for _ in range(3):
            beside.training.optimizer.zero_grad()
            beside.backward(beside.training.loss())
            beside.check()
            beside.step()
            beside.training.at += 1
        assert beside.training.replicas_are_bitwise_equal(), name
        assert any(each.any() for each in beside.state.state_dict()["residuals"].values()), name


class Branches(nn.Module):
    """Uses the layers that it is told, all of them one FSDP module's."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.layers = nn.ModuleDict({name: nn.Linear(24, 10) for name in "abc"})

    def forward(self, x: torch.Tensor, names: str) -> torch.Tensor:
        return sum(self.layers[name](x).square().mean() for name in names)


# Of the first replica, and of the second.
USED = [("abc", "abc"), ("ab", "c"), ("b", "abc"), ("a", "a"), ("cb", "ba")]


def check_what_got_no_gradient_counts_as_zeros(me: Rank) -> None:
    """On its replica; the result is in its .grad all the same, and added to what is there."""
    for kept in (False, True):
        for name, beside in cases(me, Branches)[:: 2 if kept else 1]:
            for used in USED:
                before = None
                if kept and beside.state.step:
                    before = {
                        n: p.grad.to_local().flatten().clone()
                        for n, p in beside.training.model.named_parameters()
                    }
                else:
                    beside.training.optimizer.zero_grad()
                x = batch(me.rank, beside.state.step)
                beside.backward(beside.training.model(x, used[me.rank // 2]))
                assert len(beside.arrived) == 2 * len(used[me.rank // 2])
                beside.check(before)
                if not kept:
                    beside.step()
            assert beside.training.replicas_are_bitwise_equal(), name


def check_backwards_without_a_sum_add_up(me: Rank) -> None:
    """FSDP's no_sync(): an odd number of them, each through another layer."""
    beside = Beside(me, model=Branches(), scaler=grad_scaler())
    model = beside.training.model
    for _ in range(2):
        beside.training.optimizer.zero_grad()
        for micro, used in enumerate("abc"):
            model.set_requires_gradient_sync(micro == 2)
            loss = model(batch(me.rank, micro), used)
            if micro < 2:
                beside.scaler.scale(loss).backward()
        beside.backward(loss)
        assert len(beside.arrived) == 6
        beside.check()
        beside.step()


def check_the_norm_is_that_of_a_replica(me: Rank) -> None:
    """All of it is sent: the mean of the replicas' gradients, each clipped at c / sqrt(2)."""
    training = Training(me, density=1.0, clip_norm=NORM)
    alone = network()
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    for step in range(3):
        of_replicas = []
        for replica in range(2):
            alone.zero_grad()
            for rank in (2 * replica, 2 * replica + 1):
                generator = torch.Generator().manual_seed(100 * step + rank)
                (loss_of(alone, torch.randn(8, 24, generator=generator)) / 2).backward()
            norm = nn.utils.clip_grad_norm_(alone.parameters(), NORM / math.sqrt(2))
            assert norm > NORM / math.sqrt(2)
            of_replicas.append([each.grad.clone() for each in alone.parameters()])
        for each, one, other in zip(alone.parameters(), *of_replicas, strict=True):
            each.grad = (one + other) / 2
        optimizer.step()
        training.step()
        for name, value in training.model.state_dict().items():
            expected = alone.state_dict()[name]
            torch.testing.assert_close(value.full_tensor(), expected, rtol=1e-4, atol=1e-5)


def everything(training: Training) -> list[torch.Tensor]:
    saved = training.state.state_dict()
    return [*training.shards(), *saved["residuals"].values(), *saved["momenta"].values()]


def check_one_shard_that_is_not_finite_stops_all(me: Rank) -> None:
    """One row of the first layer, which the first shard holds, on one replica."""
    scales = grad_scaler(2.0**10)
    training = Training(me, density=0.1, momentum=0.9, scaler=scales)
    for poisoned in (False, True, False, True):
        training.optimizer.zero_grad()
        before, scale = everything(training), scales.get_scale()

        def poison(module, inputs, output) -> None:
            def infinite(gradient: torch.Tensor) -> torch.Tensor:
                gradient = gradient.clone()
                gradient[0, 0] = math.inf
                return gradient

            output.register_hook(infinite)

        hook = training.model[0].register_forward_hook(poison)
        if not poisoned or me.rank != 3:
            hook.remove()
        scales.scale(training.loss()).backward()
        hook.remove()
        for parameter in training.model.parameters():
            local = parameter.grad.to_local()
            assert bool(local.isnan().any()) == (poisoned and local.numel() > 0)
        scales.step(training.optimizer)
        scales.update()
        assert equal(everything(training), before) == poisoned
        assert (scales.get_scale() == scale / 2) == poisoned
        training.at += 1
    assert training.replicas_are_bitwise_equal()


class Skips(nn.Sequential):
    """Leaves out one of its modules."""

    skipped: int | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self):
            if number != self.skipped:
                x = layer(x)
        return x


def check_a_module_that_is_left_out(me: Rank) -> None:
    """By all: nothing waits for it, at the gate or for the norm."""
    model = Skips(nn.Linear(24, 30), nn.Linear(30, 30), nn.Linear(30, 30))
    mesh = Training(me).mesh
    for layer in model:
        fully_shard(layer, mesh=mesh["shard"])
    fully_shard(model, mesh=mesh["shard"])
    scales = grad_scaler()
    state = gtopk.fsdp_hook(
        model, mesh["replicate"], density=0.2, min_numel=30, scaler=scales, clip_norm=NORM,
        momentum=0.9,
    )  # fmt: skip
    for skipped in (None, 2, None):
        model.skipped = skipped
        model.zero_grad()
        scales.scale(loss_of(model, batch(me.rank, state.step))).backward()
        assert (model[2].weight.grad is None) == (skipped == 2)
        assert model[0].weight.grad.to_local().isfinite().all()
        assert state.momentum("0.weight").any()
    assert state.step == 3
    # What one replica leaves out has the size of what the other does.
    model.skipped = 1 + me.rank // 2
    with pytest.raises(ValueError, match=r"same modules .* of '[12]\.weight' here and '[12]\."):
        scales.scale(loss_of(model, batch(me.rank, 0))).backward()
    assert state.step == 3
    model.skipped = None
    model.zero_grad()
    scales.scale(loss_of(model, batch(me.rank, 1))).backward()
    assert state.step == 4


def check_a_backward_that_raised_is_not_trained_on(me: Rank) -> None:
    """FSDP2 calls no hook any more after it: gradients would stay this replica's."""

    def broken(module, inputs, output) -> None:
        def raises(gradient: torch.Tensor) -> None:
            raise RuntimeError("broken on purpose")

        output.register_hook(raises)

    training = Training(me, density=0.1)
    training.step()
    hook = training.model[2].register_forward_hook(broken)
    with pytest.raises(RuntimeError, match="broken on purpose"):
        training.step()
    hook.remove()
    with torch.no_grad():
        training.loss()
    with pytest.raises(RuntimeError, match="the last backward raised, after which FSDP2"):
        training.step()
    assert training.state.step == 1
    dist.barrier()


def check_what_is_used_up_in_the_hook_is_named(me: Rank) -> None:
    for case, message in (
        ({"scaler": grad_scaler()}, "together with scaler=, clip_norm= and"),
        ({"clip_norm": 1.0}, "together with scaler=, clip_norm= and"),
        ({}, None),
    ):
        training = Training(me, density=0.1, **case)
        seen = []
        for parameter in training.model.parameters():
            parameter.register_post_accumulate_grad_hook(lambda p, seen=seen: seen.append(p.grad))
        if message is None:
            training.backward()
            assert len(seen) == 6
        else:
            with pytest.raises(NotImplementedError, match=message):
                training.backward()
    model = network().half()
    with pytest.raises(ValueError, match="scaler= was given with float16 parameters"):
        Training(me, density=0.1, model=model, scaler=grad_scaler())
    dist.barrier()


def check_shards_that_are_told_other_things_differ(me: Rank) -> None:
    with pytest.raises(ValueError, match=r"the loss has (no|a) scaler here and (no|a) scaler on"):
        Training(me, density=0.1, scaler=grad_scaler() if me.rank % 2 else None)
    dist.barrier()


def test_on_four_ranks(four: RankSet, check) -> None:
    four.run(check)
