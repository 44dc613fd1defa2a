"""Values for collectives, and whether a group still works."""

from __future__ import annotations

import torch
import torch.distributed as dist

from helpers.ranks import Rank

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def drawn(rank: int, numel: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    if dtype.is_floating_point:
        return torch.randn(numel, generator=generator, dtype=torch.float64).to(dtype)
    if dtype.is_complex:
        return torch.randn(numel, generator=generator, dtype=torch.complex128).to(dtype)
    if dtype == torch.bool:
        return torch.randint(0, 2, (numel,), generator=generator).bool()
    return torch.randint(0, 7, (numel,), generator=generator).to(dtype)


def usable(me: Rank, group: dist.ProcessGroup | None = None) -> None:
    tensor = torch.full((100,), float(me.rank))
    dist.all_reduce(tensor, group=group)
    assert tensor[0].item() == sum(range(me.size))
