"""How fast it is: medians, in seconds, and what they are compared with. Figures of a device alone:
of another one (tests) they say nothing."""

from __future__ import annotations

import ctypes
import os
import pathlib
import statistics
from typing import Any

import torch
import torch.distributed as dist

import gtopk
from gpu_check.place import Place

DENSITY = 0.001


def compress(place: Place) -> dict[str, Any]:
    """Selection and commit on a group of one, against topk with masking, and against memory."""
    sizes = [50_000] if place.small else [25_557_032, 335_000_000]
    return {
        "copy_bytes_per_second": _copy_speed(place),
        "rows": [_compressed(place, d) for d in sizes],
    }


def _copy_speed(place: Place) -> float:
    """Of a copy on the device, bytes read and written."""
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
    """What the kernels of one step take together; or why that was not measured."""
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


class _List(ctypes.Structure):
    _fields_ = [
        ("indices", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("size", ctypes.c_uint64),
    ]


class _MergeCall(ctypes.Structure):
    """src/cuda/calls.hpp."""

    _fields_ = [
        ("values", ctypes.c_uint8),
        ("index_bytes", ctypes.c_uint32),
        ("a", _List),
        ("b", _List),
        ("k", ctypes.c_uint64),
        ("room", ctypes.c_void_p),
        ("kept", _List),
        ("dropped", _List),
        ("report", ctypes.c_void_p),
        ("unites", ctypes.c_uint32),  # from version 3 on
        ("sound", ctypes.c_void_p),
        ("d", ctypes.c_uint64),
        ("checked", ctypes.c_uint32),  # from version 4 on
    ]


class _Calls(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint32),
        ("number_tiles", ctypes.c_void_p),
        ("select_room", ctypes.c_void_p),
        (
            "merge_room",
            ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_uint8, ctypes.c_uint32, ctypes.c_uint64),
        ),
        ("select", ctypes.c_void_p),
        ("commit", ctypes.c_void_p),
        ("merge", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)),
    ]


VERSIONS = (1, 2, 3, 4, 5, 6, 7)  # of the table of calls, as far as it is used here
FLOAT32 = 0


def check_version(version: int, path: str) -> None:
    """Raises RuntimeError for a table of calls that is not known to be laid out as above."""
    if version not in VERSIONS:
        raise RuntimeError(
            f"the kernels in {path} are of version {version}, and gpu-check knows versions "
            f"{VERSIONS[0]} to {VERSIONS[-1]}: compare _MergeCall and _Calls with "
            "src/cuda/calls.hpp, then add it to VERSIONS in tools/gpu_check/figures.py"
        )


def merge(place: Place) -> dict[str, Any]:
    """Two lists of 25,557 pairs into the 25,557 largest, on the device; checked against torch."""
    n = 1000 if place.small else 25_557
    package = pathlib.Path(gtopk.__file__).parent
    path = os.environ.get("GTOPK_CUDA_KERNELS") or str(package / "libgtopk_cuda.so")
    library = ctypes.CDLL(path)
    library.gtopk_cuda_calls.restype = ctypes.POINTER(_Calls)
    calls = library.gtopk_cuda_calls().contents
    check_version(calls.version, path)
    if place.device != "cuda":
        return {"not_measured": f"{place.device} has no merge"}
    d = 25_557_032
    lists = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        indices = torch.randperm(d, device="cuda")[:n].sort().values.to(torch.int32)
        lists.append((indices, torch.randn(n, device="cuda")))
    room = torch.empty(calls.merge_room(FLOAT32, 4, 2 * n), dtype=torch.uint8, device="cuda")
    kept = (
        torch.zeros(2 * n, dtype=torch.int32, device="cuda"),
        torch.zeros(2 * n, device="cuda"),
    )
    report = torch.zeros(8, dtype=torch.int64, device="cuda")

    def listed(pair: tuple[torch.Tensor, torch.Tensor], size: int) -> _List:
        return _List(pair[0].data_ptr(), pair[1].data_ptr(), size)

    call = _MergeCall(
        FLOAT32,
        4,
        listed(lists[0], n),
        listed(lists[1], n),
        n,
        room.data_ptr(),
        listed(kept, n),
        _List(None, None, 0),
        report.data_ptr(),
    )
    stream = torch.cuda.current_stream().cuda_stream
    times = 200
    for each in range(2):  # the first warms up
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        for _ in range(times):
            error = calls.merge(ctypes.addressof(call), stream)
            assert error == 0, f"cudaError {error}"
        last.record()
        torch.cuda.synchronize()
        seconds = first.elapsed_time(last) / 1000 / times
        del each
    summed = torch.zeros(d, device="cuda")
    for indices, values in lists:
        summed[indices.long()] += values
    largest = torch.topk(summed.abs(), n).indices.sort().values
    found = int(report[0])
    assert found == n, f"{found} kept"
    assert torch.equal(kept[0][:n].long(), largest), "other entries than torch's"
    assert torch.equal(kept[1][:n], summed[largest]), "other values than torch's"
    return {"pairs": n, "seconds": seconds}


def messages(place: Place) -> dict[str, Any]:
    """Half of a round trip of tensors on the device, between ranks 0 and 1."""
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


def lists(place: Place) -> dict[str, Any]:
    """Sparse all-reduces with several wires: the CPU's bits, and how long they take."""
    rows = []
    sizes = ((60_000, 2500),) if place.small else ((1_000_000, 10_000), (25_557_032, 25_557))
    ways = [("gtopk", wire) for wire in ("raw", "lossless", "bf16", "fp16", "int8")]
    ways += [("gtopk-tree", "lossless"), ("topk", "raw"), ("topk", "int8")]
    for d, k in sizes:
        for algorithm, wire in ways:
            generator = torch.Generator().manual_seed(place.rank)
            here, residual = torch.randn(d, generator=generator), torch.zeros(d)
            there, kept = place.to(here), place.to(residual)
            options: dict[str, Any] = {"k": k, "wire": wire, "algorithm": algorithm}
            gtopk.sparse_all_reduce(here, residual=residual, **options)
            gtopk.sparse_all_reduce(there, residual=kept, **options)
            assert torch.equal(here, there.cpu()), f"{options}, {d=}: another result"
            assert torch.equal(residual, kept.cpu()), f"{options}, {d=}: another residual"

            def step(
                tensor: torch.Tensor = there,
                left: torch.Tensor = kept,
                chosen: dict[str, Any] = options,
            ) -> None:
                gtopk.sparse_all_reduce(tensor, residual=left, **chosen)

            place.seconds(step, 3)
            taken = place.seconds(step, 3 if place.small else 30)
            rows.append(
                {
                    "algorithm": algorithm,
                    "wire": wire,
                    "d": d,
                    "k": k,
                    "seconds": statistics.median(taken),
                }
            )
    return {"rows": rows}
