"""Checks on the device. Each part returns what it has seen, and raises if a check fails.

The tests run these parts on tests/torch/fake.
"""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gtopk
from gpu_check.place import Place

TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
ALGORITHMS = ("gtopk", "gtopk-tree", "topk", "rs-ag", "dense", "true-topk")
SELECTORS = ("exact", "gaussian", "sampled", "threshold")
WIRES = ("raw", "lossless", "bf16", "fp16", "int8")
# The sizes are around a tile of the kernels, a warp, and nothing.
SIZES = (1, 2, 31, 33, 1000, 4095, 4096, 4097, 8193, 20_011)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors are equal bit for bit."""
    return torch.equal(one.cpu().view(torch.uint8), other.cpu().view(torch.uint8))


def drawn(d: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Draw values of many kinds: heavy tails, few distinct values (ties), zeros, denormals."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(d, generator=generator, dtype=torch.float64)
    kind = seed % 4
    if kind == 1:
        values = values.pow(5)
    elif kind == 2:
        values = values.round()  # makes ties, and zeros of both signs
    elif kind == 3:
        values = values * torch.finfo(dtype).tiny / 8
    return values.to(dtype)


def bits(place: Place) -> dict[str, Any]:
    """Check sparse all-reduces of random tensors: three steps give the CPU's bits and residuals."""
    cases = 60 if place.small else 600
    drawn_ones = cases // 10
    for number in range(cases - drawn_ones):
        random_case = random.Random(number)
        d, dtype = random_case.choice(SIZES), random_case.choice(TYPES)
        k = random_case.choice((1, max(1, d // 100), max(1, d // 7), d))
        options = {
            "k": k,
            "algorithm": random_case.choice(ALGORITHMS),
            "wire": random_case.choice(WIRES),
            "select": random_case.choice(SELECTORS),
            "put_back": random_case.choice(("own", "merged")),
            "op": random_case.choice((dist.ReduceOp.SUM, dist.ReduceOp.AVG)),
        }
        if options["algorithm"] in ("dense", "true-topk"):
            options["wire"] = None
        acc = torch.float64 if dtype == torch.float64 else torch.float32
        residual = drawn(d, acc, 7 * number + place.rank)
        there = place.to(residual)
        states = [torch.zeros(4, dtype=torch.float64) for _ in range(2)]
        for step in range(3):
            tensor = drawn(d, dtype, 1000 * number + 10 * step + place.rank)
            on_device = place.to(tensor)
            gtopk.sparse_all_reduce(tensor, residual=residual, state=states[0], **options)
            gtopk.sparse_all_reduce(on_device, residual=there, state=states[1], **options)
            assert same(tensor, on_device), f"case {number}, step {step}: tensor, {d=}, {options}"
            assert same(residual, there), f"case {number}, step {step}: residual, {d=}, {options}"
        assert same(*states), f"case {number}: states {states}, {d=}, {options}"
    _bits_of_drawn(place, drawn_ones)
    return {"cases": cases}


def _bits_of_drawn(place: Place, cases: int) -> None:
    """Check the same for values drawn from a call's number in its group, in two groups."""
    for number in range(cases):
        d, dtype = SIZES[-1 - number % 4], TYPES[number % len(TYPES)]
        acc = torch.float64 if dtype == torch.float64 else torch.float32
        results = []
        for device in ("cpu", place.device):
            group = dist.new_group()
            residual = drawn(d, acc, 7 * number + place.rank).to(device)
            for step in range(2):
                tensor = drawn(d, dtype, 1000 * number + 10 * step + place.rank).to(device)
                algorithm = ("random-k", "sketch")[number // 4 % 2]
                gtopk.sparse_all_reduce(
                    tensor, k=1 + d // 100, residual=residual, algorithm=algorithm, group=group
                )
            results.append((tensor, residual))
            dist.destroy_process_group(group)
        for one, other in zip(*results, strict=True):
            assert same(one, other), f"drawn case {number}: {d=}, {dtype}"


def dense(place: Place) -> dict[str, Any]:
    """Check that dense collectives and messages give the same as on the CPU."""
    other = (place.rank + 1) % place.size
    calls = 0
    for dtype in (torch.float32, torch.int64, torch.bfloat16):
        for d in (1, 1000, 100_003):
            tensor = (drawn(d, torch.float64, place.rank) * 100).to(dtype)
            there = place.to(tensor)
            for one in (tensor, there):
                dist.all_reduce(one)
                dist.broadcast(one, place.size - 1)
            assert same(tensor, there), f"all_reduce, broadcast: {dtype}, {d=}"
            whole = place.to(torch.zeros(d * place.size, dtype=dtype))
            dist.all_gather_into_tensor(whole, there)
            part = torch.empty_like(there)
            dist.reduce_scatter_tensor(part, whole)
            expected = torch.zeros(d, dtype=dtype)
            dist.reduce_scatter_tensor(expected, torch.cat([tensor] * place.size))
            assert same(expected, part), f"all_gather, reduce_scatter: {dtype}, {d=}"
            received = torch.empty_like(there)
            works = [dist.isend(there, other), dist.irecv(received, (place.rank - 1) % place.size)]
            for work in works:
                work.wait()
            assert same(received, tensor), f"isend, irecv: {dtype}, {d=}"
            calls += 6
    return {"calls": calls}


def _network(place: Place) -> nn.Module:
    torch.manual_seed(1)
    width = 32 if place.small else 1024
    return nn.Sequential(
        nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    ).to(place.device)


def _trained(place: Place, steps: int, **arguments: Any) -> tuple[nn.Module, list[float]]:
    net = _network(place)
    ddp = DistributedDataParallel(net, bucket_cap_mb=1)
    if arguments:
        gtopk.attach(ddp, **arguments)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    width = net[0].in_features
    generator = torch.Generator().manual_seed(place.rank)
    x = place.to(torch.randn(64, width, generator=generator))
    losses = []

    def step() -> None:
        optimizer.zero_grad()
        loss = (ddp(x) - 1).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    seconds = place.seconds(step, steps)
    assert losses[-1] < losses[0], f"the loss went from {losses[0]} to {losses[-1]}: {arguments}"
    return net, seconds


def training(place: Place) -> dict[str, Any]:
    """Check DDP with all ranks on this device: replicas stay bitwise equal, and the loss falls."""
    steps = 4 if place.small else 30
    taken: dict[str, float] = {}
    ways: dict[str, dict[str, Any]] = {
        "dense": {},
        "gtopk": {"density": 0.01},
        "momentum": {"density": 0.01, "momentum": 0.9, "clip_norm": 1.0},
        "unit": {"density": 0.05, "unit": "parameter", "algorithm": "topk"},
    }
    for name, arguments in ways.items():
        net, seconds = _trained(place, steps, **arguments)
        mine = torch.cat([each.detach().flatten().cpu() for each in net.parameters()])
        every = [torch.empty_like(mine) for _ in range(place.size)]
        dist.all_gather(every, mine)
        assert all(same(each, mine) for each in every), f"{name}: replicas differ"
        taken[name] = sorted(seconds)[len(seconds) // 2]
    return {"steps": steps, "median_seconds": taken}


def profile(place: Place) -> dict[str, Any]:
    """Check what waits for the device during a sparse all-reduce: no device-wide wait may."""
    d = 20_000 if place.small else 25_557_032
    tensor, residual = torch.empty(d), torch.zeros(d)
    tensor, residual = place.to(tensor.normal_()), place.to(residual)
    kept: list[torch.Tensor] = []

    def step() -> None:
        work = gtopk.sparse_all_reduce(tensor, density=0.001, residual=residual, async_op=True)
        kept.append(tensor.new_ones(8) * 2)  # work that runs beside it
        work.wait()

    step()
    place.synchronize()
    if place.device != "cuda":
        before = torch.ops.fake.counts()
        step()
        after = torch.ops.fake.counts()
        calls = {name: after[name] - before.get(name, 0) for name in after}
    else:
        from torch.profiler import ProfilerActivity
        from torch.profiler import profile as profiled

        with profiled(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
            step()
        calls = {each.key: each.count for each in seen.key_averages()}
    place.synchronize()
    waits = {name: n for name, n in calls.items() if "ynchronize" in name and n}
    assert not {"cudaDeviceSynchronize", "synchronize_device"} & {*waits} or (
        # torch.profiler itself makes one such call when it stops.
        place.device == "cuda" and waits.get("cudaDeviceSynchronize", 0) <= 1
    ), waits
    return {"waits": waits}
