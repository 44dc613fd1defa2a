"""Gradients of FSDP's modules in buffers outside FSDP's own, which then holds zeros.

A buffer is as long as all of a module's gradients, and of the accumulation type: neither sums nor
results are rounded to the type that FSDP reduces in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gtopk.ops.sparse_all_reduce import ACCUMULATION

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


class SeparateBuffers:
    """One buffer for each unit that is exchanged outside FSDP's buffer, or not exchanged yet."""

    def __init__(self, sizes: Sequence[Mapping[str, int]], device: torch.device | str) -> None:
        """sizes: for each unit, the elements of its parameters in the order of FSDP's buffer."""
        self._sizes = sizes
        self._device = device
        self._pending: dict[int, torch.Tensor] = {}
        self.exchanged: dict[int, torch.Tensor] = {}
        """By unit: what this backward exchanges, and the results at its end."""

    @property
    def pending(self) -> list[int]:
        """Units whose gradients wait for a backward that exchanges them."""
        return sorted(self._pending)

    def accumulate(
        self, index: int, output: torch.Tensor, names: Sequence[str], divisor: float
    ) -> None:
        """Add what FSDP has reduced, divided, to the unit's pending gradients; zero FSDP's buffer.

        names: of the parameters that are in it.
        """
        buffer = self._pending.get(index)
        if buffer is None:
            buffer = self._pending[index] = self._zeros(index, output.dtype)
        arrived = output.to(buffer.dtype)
        if divisor != 1:
            arrived.div_(divisor)
        parts = dict(self._split(index, buffer))
        sizes = [parts[name].numel() for name in names]
        for name, piece in zip(names, arrived.split(sizes), strict=True):
            parts[name].add_(piece)
        output.zero_()

    def begin_exchange(self, index: int, dtype: torch.dtype) -> torch.Tensor:
        """Return the unit's buffer to be exchanged: pending gradients, or zeros."""
        buffer = self._pending.pop(index, None)
        if buffer is None:
            buffer = self._zeros(index, dtype)
        self.exchanged[index] = buffer
        return buffer

    def forget(self) -> None:
        """Drop pending gradients, of a backward that raised."""
        self._pending.clear()

    def results(self, index: int) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield each parameter's name and its part of the exchanged buffer."""
        return self._split(index, self.exchanged[index])

    def _zeros(self, index: int, dtype: torch.dtype) -> torch.Tensor:
        size = sum(self._sizes[index].values())
        return torch.zeros(size, dtype=ACCUMULATION[dtype], device=self._device)

    def _split(self, index: int, buffer: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        sizes = self._sizes[index]
        return zip(sizes, buffer.split([*sizes.values()]), strict=True)
