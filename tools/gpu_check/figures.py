"""Measures speed: medians, in seconds, and the figures with which they are compared. The figures
are for a real device only; in tests they mean nothing."""

from __future__ import annotations

import statistics
from typing import Any

import torch
import torch.distributed as dist

import gtopk
from gpu_check.place import Place

DENSITY = 0.001


def first_call(place: Place) -> dict[str, Any]:
    """Time the first exchange of a process, for which kernels are loaded and may be tested, and the
    second, for each element type.
    """
    rows = []
    for dtype in (torch.float32, torch.bfloat16):
        tensor = torch.ones(100_000, dtype=dtype, device=place.device)
        residual = torch.zeros(100_000, device=place.device)
        taken = place.seconds(lambda t=tensor, r=residual: _exchange(t, r), 2)  # type: ignore[misc]
        rows.append({"dtype": str(dtype).removeprefix("torch."), "seconds": taken})
    return {"rows": rows}


def _exchange(tensor: torch.Tensor, residual: torch.Tensor) -> None:
    gtopk.sparse_all_reduce(tensor, k=100, residual=residual)


def compress(place: Place) -> dict[str, Any]:
    """Time selection and commit in a group of one, against masked topk and against memory."""
    sizes = [50_000] if place.small else [25_557_032, 335_000_000]
    return {
        "copy_bytes_per_second": _copy_speed(place),
        "rows": [_compressed(place, d) for d in sizes],
    }


def _copy_speed(place: Place) -> float:
    """Return the speed of a copy on the device, counting bytes read and written."""
    elements = 1 << (16 if place.small else 29)
    source = torch.zeros(elements, device=place.device)
    target = torch.empty_like(source)
    target.copy_(source)
    best = min(place.seconds(lambda: target.copy_(source), 10))
    return 2 * source.numel() * source.element_size() / best


def _compressed(place: Place, d: int) -> dict[str, Any]:
    times = 3 if place.small else 20
    k = max(1, round(d * DENSITY))
    gradient = torch.empty(d, device=place.device).normal_()
    tensor, residual = torch.empty_like(gradient), torch.zeros_like(gradient)

    def ours() -> None:
        gtopk.sparse_all_reduce(tensor, k=k, residual=residual)

    def usual() -> None:
        acc = tensor.add_(residual)
        indices = torch.topk(acc.abs(), k, sorted=False).indices
        values = acc[indices]
        residual.copy_(acc)
        residual[indices] = 0
        tensor.zero_()
        tensor[indices] = values

    seconds = {}
    for name, step in (("topk_and_masking", usual), ("gtopk", ours)):
        residual.zero_()
        taken = []
        for _ in range(times + 3):
            tensor.copy_(gradient)
            taken += place.seconds(step, 1)
        seconds[name] = statistics.median(taken[3:])
    row: dict[str, Any] = {"d": d, "k": k, "seconds": seconds}
    if place.device == "cuda":
        row["kernel_seconds"] = _kernels(ours, lambda: tensor.copy_(gradient))
    return row


def _kernels(step: Any, refill: Any) -> float | str:
    """Return the time of all kernels of one step, or why it was not measured."""
    from torch.profiler import ProfilerActivity, profile

    times = 10
    total = 0.0
    for _ in range(times):
        refill()
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            step()
            torch.cuda.synchronize()
        ours = [each for each in seen.key_averages() if "gtopk" in each.key]
        if not ours:
            return "the profiler has seen no kernel of gtopk's"
        total += sum(each.self_device_time_total for each in ours) * 1e-6
    return total / times


def messages(place: Place) -> dict[str, Any]:
    """Time half of a round trip of tensors on the device, between ranks 0 and 1."""
    rounds = 5 if place.small else 50
    rows = []
    other = 1 - place.rank
    for power in range(13, 23):  # 8 KiB to 4 MiB
        tensor = torch.empty(1 << power, dtype=torch.uint8, device=place.device)
        tensor.fill_(place.rank)

        def round_trip(tensor: torch.Tensor = tensor) -> None:
            if place.rank == 0:
                dist.send(tensor, other)
                dist.recv(tensor, other)
            else:
                dist.recv(tensor, other)
                dist.send(tensor, other)

        place.seconds(round_trip, 3)
        taken = place.seconds(round_trip, rounds)
        rows.append({"bytes": 1 << power, "seconds": statistics.median(taken) / 2})
    return {"rows": rows}
