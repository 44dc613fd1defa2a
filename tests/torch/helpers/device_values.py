"""What tests on the fake device share: its name, tensors, and waiting for it."""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from helpers.paths import TORCH
from helpers.ranks import Rank, run_script

FAKE = "fake"


def values(me: Rank, n: int = 12, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7 + me.rank)
    return (torch.randn(n, generator=generator) * 100).to(dtype)


def fill(tensor: torch.Tensor, value: float) -> torch.Tensor:
    """Queues a copy that fills the tensor on the device, after its stream's earlier work."""
    source = torch.full(tensor.shape, value, dtype=tensor.dtype).pin_memory()
    return tensor.copy_(source, non_blocking=True)


def read_later(tensor: torch.Tensor) -> torch.Tensor:
    """Reads the tensor once the current stream has got here; call synchronize() before use."""
    buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return buffer.copy_(tensor, non_blocking=True)


def synchronize() -> None:
    """Waits until the current stream has done its work."""
    torch.zeros(1).to(FAKE).cpu()


def meet(me: Rank, name: str) -> None:
    """Through the store only."""
    store = dist.PrefixStore(name, me.store)
    store.set(str(me.rank), "here")
    store.wait([str(rank) for rank in range(me.size)], timedelta(seconds=60))


# Each of these: from tensors, all on one device, to results on the same one.


def run_beside_the_fake(script: str, fake_library: str, **env: str) -> str:
    """What a program of one rank prints, the driver being the fake device's unless it says so."""
    env.setdefault("GTOPK_CUDA_SELF_TEST", "0")  # its calls would be counted, too
    folders = [env.pop("PYTHONPATH", None), str(TORCH), os.environ.get("PYTHONPATH")]
    path = os.pathsep.join(filter(None, folders))
    done = run_script(script, GTOPK_CUDA_DRIVER=fake_library, PYTHONPATH=path, **env)
    assert done.returncode == 0, done.stderr
    return done.stdout
