"""Parameters as vectors that an outer optimizer exchanges: one for each type and tile size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gtopk.ops.sparse_all_reduce import ACCUMULATION
from gtopk.training.outer_presets import TILE
from gtopk.training.outer_tiles import Tile, from_tiles, in_tiles, restored, tile_of, transformed
from gtopk.training.parameters import as_real, local_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


class Slot(NamedTuple):
    """The position of a parameter in a part's vector."""

    name: str
    parameter: torch.Tensor
    begin: int
    tile: Tile | None
    """None: its elements are ordered as in a contiguous tensor."""

    @property
    def tensor(self) -> torch.Tensor:
        """Return the parameter's values as real numbers; of a DTensor, this rank's shard."""
        return as_real(local_of(self.parameter.detach()))

    @property
    def gradient(self) -> torch.Tensor:
        """Return its gradient in the same form; zeros if it has none."""
        gradient: Any = self.parameter.grad
        if gradient is None:
            return torch.zeros_like(self.tensor)
        wanted = getattr(self.parameter, "placements", None)
        if wanted is not None and gradient.placements != wanted:  # a sum whose terms are separate
            gradient = gradient.redistribute(placements=wanted)
        return as_real(local_of(gradient.detach()).to_dense())


class Part:
    """Some parameters as one vector of their accumulation type.

    Blocks, in which a replica selects, are counted from the vector's first element. Parameters that
    are cut into tiles are stored tile after tile, so that a block is a tile.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.Tensor],
        *,
        transform: str | None,
        block: int,
        group: int,
        device: torch.device | None = None,
    ) -> None:
        """Hold these parameters, all of one type, device, group and number of elements per tile.

        group: the group's number in the inner optimizer. device: the vectors' device; None means
        the parameters' device.
        """
        self.block = block
        self.group = group
        self._has_coefficients = transform == "dct"
        self.slots: list[Slot] = []
        self.numel = 0
        for name, parameter in parameters.items():
            tensor = as_real(local_of(parameter.detach()))
            tile = None if transform is None else tile_of(tensor.shape)
            self.slots.append(Slot(name, parameter, self.numel, tile))
            self.numel += tensor.numel()
        first = self.slots[0].tensor
        self.parameter_dtype = first.dtype
        self.dtype = ACCUMULATION[first.dtype]
        self.device = first.device if device is None else device

    def new(self) -> torch.Tensor:
        """Return a vector of zeros."""
        return torch.zeros(self.numel, dtype=self.dtype, device=self.device)

    def gather(self) -> torch.Tensor:
        """Return a vector of the parameters' current values."""
        vector = torch.empty(self.numel, dtype=self.dtype, device=self.device)
        self.fill(vector, {each.name: each.tensor for each in self.slots})
        return vector

    def gather_gradients(self) -> torch.Tensor:
        """Return a vector of the parameters' gradients."""
        vector = torch.empty(self.numel, dtype=self.dtype, device=self.device)
        self.fill(vector, {each.name: each.gradient for each in self.slots})
        return vector

    def transform(self, vector: torch.Tensor) -> torch.Tensor:
        """Return the values to select from: the vector itself, or its tiles' coefficients."""
        return self._each_tile(vector, transformed) if self._has_coefficients else vector

    def restore(self, vector: torch.Tensor) -> torch.Tensor:
        """Undo transform()."""
        return self._each_tile(vector, restored) if self._has_coefficients else vector

    def scatter(self, vector: torch.Tensor) -> None:
        """Write a vector to the parameters, rounded to their type."""
        for slot, tensor in self.tensors(vector):
            slot.tensor.copy_(tensor)

    def fill(self, vector: torch.Tensor, tensors: Mapping[str, torch.Tensor]) -> None:
        """Copy tensors with the parameters' names and shapes into a vector."""
        for each in self.slots:
            tensor = tensors[each.name]
            if each.tile is not None:
                tensor = in_tiles(tensor, each.tile)
            self._within(vector, each).copy_(tensor.reshape(-1))

    def tensors(self, vector: torch.Tensor) -> Iterator[tuple[Slot, torch.Tensor]]:
        """Yield each parameter's slot, and its part of a vector in the parameter's shape."""
        for each in self.slots:
            shape, piece = each.tensor.shape, self._within(vector, each)
            if each.tile is not None:
                yield each, from_tiles(piece, each.tile, shape)
            else:
                yield each, piece.view(shape)

    def _each_tile(
        self, vector: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        for each in self.slots:
            assert each.tile is not None
            piece = self._within(vector, each)
            tiles = piece.view(-1, each.tile.rows, each.tile.columns)
            piece.copy_(change(tiles).reshape(-1))
        return vector

    def _within(self, vector: torch.Tensor, slot: Slot) -> torch.Tensor:
        return vector[slot.begin : slot.begin + slot.tensor.numel()]


def parts_of(
    parameters: Mapping[str, torch.Tensor],
    transform: str | None,
    groups: Mapping[str, int],
    *,
    apart: bool,
    device: torch.device | None = None,
) -> list[Part]:
    """Put parameters of one type, device and tile size together, ordered by first parameter.

    groups: the number of each parameter's group in the inner optimizer. apart: whether a part must
    not mix groups. device: the vectors' device.
    """
    together: dict[tuple[Any, ...], dict[str, torch.Tensor]] = {}
    for name, parameter in parameters.items():
        tensor = as_real(local_of(parameter.detach()))
        block = TILE if transform is None else tile_of(tensor.shape).numel
        group = groups[name] if apart else None
        together.setdefault((tensor.dtype, tensor.device, block, group), {})[name] = parameter
    return [
        Part(some, transform=transform, block=block, group=groups[next(iter(some))], device=device)
        for (_, _, block, _), some in together.items()
    ]
