"""All that a SparseState does, with parameters on a device, which here is a fake
one (fake/device.hpp): each as on the CPU, bit for bit. Nothing here has run on a GPU.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from gtopk.core.groups import backend_of
from gtopk.exchange.unit_exchange import Exchange
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import gtopk
from helpers.device_values import FAKE, values
from helpers.ranks import Rank, RankSet

pytestmark = pytest.mark.loopback

STEPS = 4
SPARSE = {"density": 0.1, "min_numel": 8}


def test_on_two_ranks(two_with_device: RankSet, check: Callable) -> None:
    two_with_device.run(check, timeout=90.0)


class Scale:
    """The part of a GradScaler that a SparseState uses; as there, the number is on the device."""

    def __init__(self, device: str) -> None:
        self.number = torch.tensor(4.0, device=device)

    def get_scale(self) -> float:
        return self.number.item()


class Run:
    """A network on a device, exchanged by DDP's hook, by an optimizer, or by FSDP2's hook."""

    def __init__(self, device: str, way: str, rates: tuple[float, ...], **arguments: Any) -> None:
        """rates: of the parameters, in turn."""
        torch.manual_seed(1)
        self.device = device
        self.net = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 4)).to(device)
        self.scaler = arguments.get("scaler")
        if self.scaler:
            self.scaler = arguments["scaler"] = Scale(device)
        if way == "fsdp":
            mesh = DeviceMesh(device, [[0], [1]], mesh_dim_names=("replicate", "shard"))
            policy = arguments.pop("policy", MixedPrecisionPolicy())
            fully_shard(self.net[0], mesh=mesh["shard"], mp_policy=policy)
            fully_shard(self.net, mesh=mesh["shard"], mp_policy=policy)
        groups = [
            {"params": [each], "lr": rates[i % len(rates)]}
            for i, each in enumerate(self.net.parameters())
        ]
        self.optimizer: Any = torch.optim.SGD(groups)
        self.model: nn.Module = self.net
        if arguments.get("accumulate") == "update" and way != "optimizer":
            arguments["optimizer"] = self.optimizer
        arguments = {**SPARSE, **arguments}
        if arguments.get("algorithm") == "dense":
            del arguments["density"]
        if way == "optimizer":
            self.optimizer = gtopk.DistributedOptimizer(self.optimizer, self.net, **arguments)
            self.state = self.optimizer.sparse_state
        elif way == "fsdp":
            self.state = gtopk.fsdp_hook(self.net, mesh["replicate"], **arguments)
        else:
            self.model = DistributedDataParallel(self.net, bucket_cap_mb=0.001)
            self.state = gtopk.attach(self.model, **{"unit": 2000, **arguments})

    def step(self, me: Rank, at: int, *, broken: bool = False) -> bool:
        """broken: this rank's gradients are not finite. Returns whether the step happened."""
        generator = torch.Generator().manual_seed(100 * me.rank + at)
        self.optimizer.zero_grad()
        x = torch.randn(8, 20, generator=generator).to(self.device)
        loss = self.model(x).square().mean()
        if self.scaler:
            loss = loss * self.scaler.get_scale()
        (loss * math.inf if broken else loss).backward()
        happened = all(bool(each.cpu().isfinite().all()) for each in self.gradients())
        if happened:
            self.optimizer.step()
        return happened

    def gradients(self) -> list[torch.Tensor]:
        found = [each.grad for each in self.net.parameters() if each.grad is not None]
        return [_local(each) for each in found]

    def kept(self) -> list[torch.Tensor]:
        """Parameters, and all that the state keeps."""
        momenta = self.state.momenta.by_parameter()
        residuals = [self.state.residual(name) for unit in self.state.units for name in unit.names]
        return [
            *(_local(each.detach()) for each in self.net.parameters()),
            *(each for each in residuals if each is not None),
            *(momenta[name] for name in sorted(momenta)),
        ]


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def check_same(me: Rank, way: str, *, rates: tuple[float, ...] = (0.1,), broken=None, **arguments):
    """Trains on the CPU and on the device. broken: the rank and the step that has no gradient."""
    runs = [Run(device, way, rates, **arguments) for device in ("cpu", FAKE)]
    for at in range(STEPS):
        happened = [run.step(me, at, broken=(me.rank, at) == broken) for run in runs]
        assert happened == [broken is None or at != broken[1]] * 2, (way, arguments, at)
        for one, other in zip(*(run.gradients() for run in runs), strict=True):
            assert torch.equal(one.nan_to_num(7.0), other.cpu().nan_to_num(7.0)), (way, at)
    expected, seen = (run.kept() for run in runs)
    assert len(expected) == len(seen) > 4
    assert "launched_unloaded" not in torch.ops.fake.counts()
    for one, other in zip(expected, seen, strict=True):
        assert other.device.type == FAKE
        assert torch.equal(one, other.cpu()), (way, arguments)


ARGUMENTS: list[dict[str, Any]] = [
    {"momentum": 0.9, "nesterov": True},
    {"clip_norm": 0.5, "clip": "model"},
    {"clip_norm": 0.5, "clip": "unit", "wire": "bf16"},
    {"accumulate": "update"},
    {"accumulate": "update", "rates": (0.1, 0.02), "momentum": 0.9},
    {"scaler": True, "momentum": 0.9},
    {"scaler": True, "broken": (1, 2), "clip_norm": 0.5, "clip": "model"},
    {"scaler": True, "accumulate": "update", "algorithm": "dense"},
    {"scaler": True, "momentum": 0.9, "algorithm": "dense", "wire": "4bit"},
    {"broken": (0, 1), "select": "threshold"},
    {"momentum": 0.9, "select": "gaussian"},
    {"scaler": True, "broken": (0, 2), "algorithm": "topk", "select": "block", "block": 64},
    {"warmup": [("dense", 1), (0.3, 1)], "put_back": "merged"},
    {"scaler": True, "broken": (1, 1), "algorithm": "true-topk", "momentum": 0.9},
]


def check_under_ddp_everything_is_as_on_the_cpu(me: Rank) -> None:
    for each in ARGUMENTS:
        check_same(me, "ddp", **each)


def check_of_an_optimizer_everything_is_as_on_the_cpu(me: Rank) -> None:
    for each in ARGUMENTS:
        check_same(me, "optimizer", **each)


def check_under_fsdp_everything_is_as_on_the_cpu(me: Rank) -> None:
    for each in ARGUMENTS:
        check_same(me, "fsdp", **each)


LANES = range(1 + 32 + 2, 1 + 32 + 2 + 4)  # the streams that write results: device_streams.cpp


class SmallPartsAreLate:
    """A backend whose dense results get to the device 0.2 s late, although they end first."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._small: torch.futures.Future | None = None  # of the unit, if it has a small part
        self._sparse = lambda: None  # adds the callback of the unit's sparse operation

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def end_of(self, work: SimpleNamespace) -> Any:
        return work.get_future()

    def sparse_all_reduce(self, *arguments: Any, **options: Any) -> Any:
        future = self._backend.end_of(self._backend.sparse_all_reduce(*arguments, **options))
        self._small = None

        def add(callback: Callable) -> None:
            self._sparse = lambda: future.add_done_callback(callback)
            if self._small is None:
                self._sparse()

        return work_of(future, add)

    def allreduce(self, *arguments: Any) -> Any:
        for lane in LANES:
            before = torch.ops.fake.set_stream(lane)
            torch.ops.fake.hold()
            torch.ops.fake.set_stream(before)
        threading.Timer(0.2, lambda: [torch.ops.fake.release() for _ in LANES]).start()
        self._small = future = self._backend.end_of(self._backend.allreduce(*arguments))

        def add(callback: Callable) -> None:
            sparse = self._sparse
            future.add_done_callback(callback)
            future.add_done_callback(lambda _: sparse())

        return work_of(future, add)


def work_of(future: torch.futures.Future, add_done_callback: Callable) -> SimpleNamespace:
    result = SimpleNamespace(wait=future.wait, add_done_callback=add_done_callback)
    return SimpleNamespace(get_future=lambda: result)


def check_a_unit_waits_for_its_small_part_on_the_device(me: Rank) -> None:
    for way in ("ddp", "optimizer", "fsdp"):
        runs = [Run(device, way, (0.1,)) for device in ("cpu", FAKE)]
        for at in range(3):
            runs[0].step(me, at)
            with patch(
                "gtopk.exchange.backward.backend_of", lambda of: SmallPartsAreLate(backend_of(of))
            ):
                runs[1].step(me, at)
            for one, other in zip(*(run.gradients() for run in runs), strict=True):
                assert torch.equal(one, other.cpu()), (way, at)


def check_scaled_units_select_before_commit_with_no_stream_wait(me: Rank) -> None:
    """More than there are streams for results: each would hold up others until all have come."""
    torch.manual_seed(1)
    net = nn.Sequential(*(nn.Linear(12, 12) for _ in range(14))).to(FAKE)
    state = gtopk.SparseState(
        net.named_parameters(),
        density=0.1,
        min_numel=1,
        unit="parameter",
        scaler=Scale(FAKE),
    )
    ddp = DistributedDataParallel(net, bucket_cap_mb=0.0001)
    ddp.register_comm_hook(state, gtopk.sparse_hook)
    assert len(state.units) == 28
    for _ in range(2):  # DDP lays its buckets out anew
        ddp(values(me, 12).to(FAKE)).sum().backward()
    for at in range(3):
        torch.ops.fake.calls()
        before = torch.ops.fake.counts()
        ddp(values(me, 12).to(FAKE)).sum().backward()
        after = torch.ops.fake.counts()
        made = {name: after[name] - before.get(name, 0) for name in after}
        assert (made["select"], made["commit"]) == (28, 28), at
        assert made["wait_value"] == 0
        assert made.get("synchronize_device", 0) == 0
        calls = torch.ops.fake.calls()
        # All have been selected from before anything is committed.
        assert max(i for i, name in enumerate(calls) if name == "select") < calls.index("commit")
    assert all(bool(each.grad.cpu().isfinite().all()) for each in net.parameters())


def check_densities_are_measured_where_the_gradients_are(me: Rank) -> None:
    run = Run(FAKE, "ddp", (0.1,), density="adaptive", density_bounds=(0.02, 0.2), unit="parameter")
    for at in range(9):
        assert bool(run.state.layers) == (at > 7)  # 2 not counted, 5 measured, 1 to choose
        run.step(me, at)
    layers: list = [None, None]
    dist.all_gather_object(layers, run.state.layers)
    assert layers[0] == layers[1]
    assert [unit.names for unit in run.state.units] == [each.names for each in run.state.layers]
    assert all(each.ready >= 0 for each in run.state.layers)
    assert max(each.ready for each in run.state.layers) < 60


def check_merged_layers_go_on_with_their_residuals_and_momenta(me: Rank) -> None:
    bounds = {"density": "adaptive", "density_bounds": (0.02, 0.2), "unit": "parameter"}
    runs = [Run(device, "ddp", (0.1,), momentum=0.9, **bounds) for device in ("cpu", FAKE)]
    for at in range(6):
        for run in runs:
            if at == 3:
                ready = [0.0 if i < 2 else 1e3 for i in range(len(run.state.units))]
                run.state.backward.stopwatch.ready = lambda ready=ready: ready
            run.step(me, at)
    assert len(runs[0].state.units) == len(runs[1].state.units) < 4
    for one, other in zip(*(run.kept() for run in runs), strict=True):
        assert torch.equal(one, other.cpu())


def check_a_group_without_the_cpu_compares_states_on_its_device(me: Rank) -> None:
    group = dist.new_group(backend="fake:gtopk")
    parameter = nn.Parameter(torch.ones(40, device=FAKE))
    optimizer = gtopk.DistributedOptimizer(
        torch.optim.SGD([parameter], lr=0.1),
        [("a", parameter)],
        density=0.5,
        min_numel=1,
        group=group,
    )
    parameter.square().sum().backward()
    optimizer.step()
    assert parameter.cpu().tolist() == [pytest.approx(0.8)] * 20 + [1.0] * 20
    with pytest.raises(ValueError, match=r"density is 0\.[34] here and 0\.[34] on rank"):
        gtopk.DistributedOptimizer(
            torch.optim.SGD([parameter], lr=0.1),
            [("a", parameter)],
            density=0.3 + me.rank / 10,
            group=group,
        )
    dist.destroy_process_group(group)


def check_nothing_of_a_step_is_captured_into_a_graph(me: Rank) -> None:
    tensor, residual = values(me, 100).to(FAKE), torch.zeros(100).to(FAKE)
    run = Run(FAKE, "ddp", (0.1,))
    before = torch.ops.fake.counts()["pinned_bytes"]
    torch.ops.fake.capture(True)
    try:
        with pytest.raises(NotImplementedError, match="captured into a CUDA graph"):
            gtopk.sparse_all_reduce(tensor, k=5, residual=residual)
        assert torch.ops.fake.counts()["pinned_bytes"] == before, "asked only after taking memory"
        with pytest.raises(NotImplementedError, match="captured into a CUDA graph"):
            run.step(me, 0)
    finally:
        torch.ops.fake.capture(False)
    gtopk.sparse_all_reduce(tensor, k=5, residual=residual)
    assert int((tensor.cpu() != 0).sum()) == 5


def check_an_error_of_the_device_behind_an_exchange_is_raised(me: Rank) -> None:
    run = Run(FAKE, "optimizer", (0.1,))

    def lost(exchange: Exchange) -> bool:
        raise RuntimeError("the device is lost")

    happened, Exchange.happened = Exchange.happened, lost
    try:
        with pytest.raises(RuntimeError, match="the device is lost"):
            run.step(me, 0)
    finally:
        Exchange.happened = happened
    assert run.step(me, 1)
