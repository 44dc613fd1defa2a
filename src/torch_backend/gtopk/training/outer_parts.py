"""Parameters as the vectors that an outer optimizer exchanges: one for each type and tile size."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from gtopk.ops.sparse_all_reduce import ACCUMULATION
from gtopk.training.outer_presets import TILE
from gtopk.training.outer_tiles import Tile, from_tiles, in_tiles, tile_of
from gtopk.training.parameters import as_real

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class Slot(NamedTuple):
    """Where a parameter lies in a part's vector."""

    name: str
    parameter: torch.Tensor
    begin: int
    tile: Tile | None
    """None: its elements lie as in a contiguous tensor."""

    @property
    def tensor(self) -> torch.Tensor:
        """The parameter's own numbers, as real ones."""
        return as_real(self.parameter.detach())


class Part:
    """Some parameters as one vector of their accumulation type.

    Blocks, in which a replica selects, are counted from the vector's first element. Where
    parameters are cut into tiles they lie in it tile after tile, so that a block is a tile.
    """

    def __init__(self, parameters: Mapping[str, torch.Tensor], *, tiled: bool, block: int) -> None:
        """parameters: of one type and device; if tiled, all with tiles of `block` elements."""
        self.block = block
        self.slots: list[Slot] = []
        self.numel = 0
        for name, parameter in parameters.items():
            tensor = as_real(parameter.detach())
            tile = tile_of(tensor.shape) if tiled else None
            self.slots.append(Slot(name, parameter, self.numel, tile))
            self.numel += tensor.numel()
        first = self.slots[0].tensor
        self.parameter_dtype = first.dtype
        self.dtype = ACCUMULATION[first.dtype]
        self.device = first.device

    def new(self) -> torch.Tensor:
        """Return a vector of zeros."""
        return torch.zeros(self.numel, dtype=self.dtype, device=self.device)

    def gather(self) -> torch.Tensor:
        """Return a vector of what the parameters are now."""
        vector = torch.empty(self.numel, dtype=self.dtype, device=self.device)
        self.fill(vector, {each.name: each.tensor for each in self.slots})
        return vector

    def scatter(self, vector: torch.Tensor) -> None:
        """Write a vector to the parameters, rounded to their type."""
        for slot, tensor in self.tensors(vector):
            slot.tensor.copy_(tensor)

    def fill(self, vector: torch.Tensor, tensors: Mapping[str, torch.Tensor]) -> None:
        """Write tensors of the parameters' names and shapes to a vector."""
        for each in self.slots:
            tensor = tensors[each.name]
            if each.tile is not None:
                tensor = in_tiles(tensor, each.tile)
            self._within(vector, each).copy_(tensor.reshape(-1))

    def tensors(self, vector: torch.Tensor) -> Iterator[tuple[Slot, torch.Tensor]]:
        """Yield each parameter's slot, and its share of a vector in the parameter's shape."""
        for each in self.slots:
            shape, piece = each.tensor.shape, self._within(vector, each)
            if each.tile is not None:
                yield each, from_tiles(piece, each.tile, shape)
            else:
                yield each, piece.view(shape)

    def _within(self, vector: torch.Tensor, slot: Slot) -> torch.Tensor:
        return vector[slot.begin : slot.begin + slot.tensor.numel()]


def parts_of(parameters: Mapping[str, torch.Tensor], transform: str | None) -> list[Part]:
    """Put parameters of one type, device and tile size together, in the order of the first ones."""
    together: dict[tuple[torch.dtype, torch.device, int], dict[str, torch.Tensor]] = {}
    for name, parameter in parameters.items():
        tensor = as_real(parameter.detach())
        block = TILE if transform is None else tile_of(tensor.shape).numel
        together.setdefault((tensor.dtype, tensor.device, block), {})[name] = parameter
    return [
        Part(some, tiled=transform is not None, block=block)
        for (_, _, block), some in together.items()
    ]
