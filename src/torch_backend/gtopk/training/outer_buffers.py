"""A module's buffers under an outer optimizer: running means are averaged, counters copied."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from gtopk.core.groups import all_reduce, broadcast, rank_in
from gtopk.ops.sparse_all_reduce import ACCUMULATION
from gtopk.training.parameters import local_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

Buffered = list[torch.Tensor]
Together = dict[tuple[torch.dtype, torch.device], Buffered]


class Buffers:
    """The buffers that training changes, which are those in the module's state_dict.

    A buffer that is not finite initially is probably a mask, and is left alone.
    """

    def __init__(self, module: nn.Module, group: dist.ProcessGroup | None) -> None:
        """Find the buffers; all replicas must have the same ones by now."""
        self._group = group
        self._averaged: Together = {}
        self._copied: Together = {}
        saved = {id(each) for each in module.state_dict(keep_vars=True).values()}
        for buffer in module.buffers():
            each = local_of(buffer)
            if id(buffer) not in saved or not each.numel():
                continue
            if each.dtype not in ACCUMULATION:
                self._copied.setdefault((each.dtype, each.device), []).append(each)
            elif each.isfinite().all():
                self._averaged.setdefault((each.dtype, each.device), []).append(each)

    def are_finite(self) -> bool:
        """Return whether this replica's buffers can be averaged."""
        return all(bool(each.isfinite().all()) for some in self._averaged.values() for each in some)

    def exchange(self, participants: Sequence[int]) -> list[tuple[torch.Tensor, Buffered]]:
        """Average or copy the buffers of the participants (ranks in the group); collective.

        Return values for write() to put into the buffers.
        """
        takes_part = rank_in(self._group) in participants
        found = []
        for (dtype, _), buffers in self._averaged.items():
            flat = torch.cat([each.detach().reshape(-1) for each in buffers])
            flat = flat.to(ACCUMULATION[dtype])
            if not takes_part:
                flat.zero_()
            all_reduce(flat, group=self._group)
            count = torch.full((), len(participants), dtype=flat.dtype, device=flat.device)
            found.append((flat.div_(count), buffers))
        for buffers in self._copied.values():
            flat = torch.cat([each.detach().reshape(-1) for each in buffers])
            broadcast(flat, group=self._group, group_src=participants[0])
            found.append((flat, buffers))
        return found


def write(flat: torch.Tensor, buffers: Buffered) -> None:
    """Put new values, concatenated in `flat`, into the buffers."""
    pieces = torch.split(flat, [each.numel() for each in buffers])
    for buffer, piece in zip(buffers, pieces, strict=True):
        buffer.detach().copy_(piece.view(buffer.shape))
