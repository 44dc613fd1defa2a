"""Tiles: the small rectangles of a matrix in which SparseLoCo and DeMo select.

These functions know neither ranks nor the meaning of a tile's values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

SIDE = 64


@dataclass(frozen=True)
class Tile:
    """A tile's rows and columns."""

    rows: int
    columns: int

    @property
    def numel(self) -> int:
        """The number of elements in the tile."""
        return self.rows * self.columns


def tile_of(shape: Sequence[int]) -> Tile:
    """Return the tile for a tensor of this shape: the largest that fits, up to 64 x 64.

    Each side is the largest divisor of the matrix's side up to 64, so nothing is padded. A tensor
    of one dimension is a single row; a tensor of more than two has a row for each index of the
    first.
    """
    rows, columns = _matrix(shape)
    return Tile(_largest_divisor(rows), _largest_divisor(columns))


def in_tiles(tensor: torch.Tensor, tile: Tile) -> torch.Tensor:
    """Return the tensor's elements tile after tile, as (tiles, rows, columns)."""
    rows, columns = _matrix(tensor.shape)
    cut = tensor.reshape(rows // tile.rows, tile.rows, columns // tile.columns, tile.columns)
    return cut.transpose(1, 2).reshape(-1, tile.rows, tile.columns)


def from_tiles(tiles: torch.Tensor, tile: Tile, shape: Sequence[int]) -> torch.Tensor:
    """Return the tensor of this shape whose in_tiles() has these elements."""
    rows, columns = _matrix(shape)
    cut = tiles.reshape(rows // tile.rows, columns // tile.columns, tile.rows, tile.columns)
    return cut.transpose(1, 2).reshape(torch.Size(shape))


def transformed(tiles: torch.Tensor) -> torch.Tensor:
    """Return the coefficients of each tile's cosine transform (DCT-II, orthonormal)."""
    left, right = (_cosines(size, tiles) for size in tiles.shape[1:])
    return left @ tiles @ right.T


def restored(coefficients: torch.Tensor) -> torch.Tensor:
    """Return the tiles that have these coefficients."""
    left, right = (_cosines(size, coefficients) for size in coefficients.shape[1:])
    return left.T @ coefficients @ right


def _cosines(size: int, like: torch.Tensor) -> torch.Tensor:
    """Return the transform of a vector as a matrix whose rows have length 1."""
    place = torch.arange(size, dtype=torch.float64, device="cpu")
    rows = torch.cos(torch.outer(place, place + 0.5) * (math.pi / size)) * math.sqrt(2 / size)
    rows[0] /= math.sqrt(2)
    return rows.to(like.device, like.dtype)


def _matrix(shape: Sequence[int]) -> tuple[int, int]:
    if len(shape) < 2:
        return 1, math.prod(shape)
    return shape[0], math.prod(shape[1:])


def _largest_divisor(size: int) -> int:
    return next((each for each in range(min(SIDE, size), 0, -1) if size % each == 0), 1)
