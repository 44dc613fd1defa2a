"""The parts of a model under FSDP2 that SparseState exchanges, case by case."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gtopk
from helpers.fsdp import Training
from helpers.ranks import Rank

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


class Branches(nn.Module):
    """Uses the layers that it is told, all of them one FSDP module's."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.layers = nn.ModuleDict({name: nn.Linear(24, 10) for name in "abc"})

    def forward(self, x: torch.Tensor, names: str) -> torch.Tensor:
        return sum(self.layers[name](x).square().mean() for name in names)
