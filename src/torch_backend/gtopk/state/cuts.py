"""How FSDP2 cuts a parameter into shards. Pure; knows no ranks and no files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Cut:
    """One shard of a parameter: consecutive rows of dimension `dim`, equally many but for the last.

    In a unit it is flat and padded with zeros to the size of the first, which is the largest.
    """

    shape: tuple[int, ...]
    """The shape of the whole parameter."""
    dim: int
    number: int
    shards: int

    def piece(self, whole: torch.Tensor) -> torch.Tensor:
        """Return this shard of `whole`, flat and padded."""
        rows, begin, end = self._rows(self.number)
        mine = whole.narrow(self.dim, begin, end - begin).flatten()
        size = rows * (whole.numel() // max(1, self.shape[self.dim]))
        padded = torch.zeros(size, dtype=whole.dtype, device=whole.device)
        padded[: mine.numel()] = mine
        return padded

    def whole(self, pieces: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the parameter that these are all shards of, each flat and padded."""
        parts = []
        for number, each in enumerate(pieces):
            _, begin, end = self._rows(number)
            shape = [*self.shape]
            shape[self.dim] = end - begin
            numel = torch.Size(shape).numel()
            parts.append(each.flatten()[:numel].view(shape))
        return torch.cat(parts, self.dim)

    def _rows(self, number: int) -> tuple[int, int, int]:
        """Return the rows of the largest shard, and where a shard begins and ends."""
        rows = self.shape[self.dim]
        most = -(-rows // self.shards)
        return most, min(number * most, rows), min((number + 1) * most, rows)
