"""Splits parameters into units; one selection covers a unit. Uses no tensors or ranks.

Units do not follow DDP's buckets, because the buckets' layout changes after the first step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, cast

from gtopk.ops.options import check_whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch

# This is a size in bytes; or one unit per parameter (layer-wise: LAGS, Shi et al., arXiv
# 1911.08727); or one unit for the model (the gTop-k paper, arXiv 1901.04359: one selection, which
# does not overlap the backward).
UnitSize = int | Literal["parameter", "model"]

DEFAULT_UNIT = 25 * 2**20  # like DDP's buckets
LEAST_DEFAULT_UNIT = 2**20


@dataclass(frozen=True)
class Parameter:
    """What determines a parameter's unit: its name, shape and element type."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device | None = field(default=None, compare=False)
    """None is the CPU. It may differ between ranks, and is not saved."""
    order: tuple[int, ...] | None = None
    """Its dimensions in the order of memory, the innermost last; None: as in the shape."""
    dense: bool = False
    """Whether it counts as small, however many elements it has."""

    @property
    def numel(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of its gradient."""
        return self.numel * self.dtype.itemsize


@dataclass(frozen=True)
class Unit:
    """Parameters of one type whose gradients are exchanged together.

    As a vector, it consists of its parameters in the order given here.
    """

    dtype: torch.dtype
    large: tuple[Parameter, ...]
    """Parameters covered by one selection, with a residual."""
    small: tuple[Parameter, ...]
    """Parameters averaged by one dense all-reduce, without a residual."""

    @property
    def device(self) -> torch.device | str:
        """The device of its gradients."""
        return (*self.large, *self.small)[0].device or "cpu"

    @property
    def selected_numel(self) -> int:
        """The number d of elements that the selection covers."""
        return sum(parameter.numel for parameter in self.large)

    @property
    def dense_numel(self) -> int:
        """The number of elements of the dense all-reduce."""
        return sum(parameter.numel for parameter in self.small)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all its parameters, selected ones first."""
        return tuple(parameter.name for parameter in (*self.large, *self.small))


class _Open:
    """A unit being filled."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.large: list[Parameter] = []
        self.small: list[Parameter] = []
        self.nbytes = 0

    def has_capacity(self, parameter: Parameter, unit: UnitSize) -> bool:
        if unit == "model":
            return True
        if unit == "parameter":
            # Small parameters have no selection, so they join the next large one.
            return not self.large
        return self.nbytes == 0 or self.nbytes + parameter.nbytes <= unit

    def add(self, parameter: Parameter, min_numel: int) -> None:
        is_small = parameter.dense or parameter.numel < min_numel
        (self.small if is_small else self.large).append(parameter)
        self.nbytes += parameter.nbytes

    def close(self) -> Unit:
        return Unit(self.dtype, tuple(self.large), tuple(self.small))


def order_of(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...] | None:
    """Return a Parameter's order. Dimensions of size 1 are ignored."""
    usual = sorted(range(len(shape)), key=lambda i: shape[i] > 1)
    order = sorted(usual, key=lambda i: -strides[i] if shape[i] > 1 else -math.inf)
    return None if order == usual else tuple(order)


def check_unit(unit: object) -> UnitSize:
    """Return `unit`; raise ValueError unless it is a positive number of bytes or a known name."""
    if isinstance(unit, str) and unit in ("parameter", "model"):
        return cast("UnitSize", unit)
    try:
        return check_whole(unit, "unit", 1)
    except ValueError:
        raise ValueError(
            "gtopk: unit must be a positive number of bytes, 'parameter' or 'model', "
            f"given {unit!r}"
        ) from None


def default_unit(parameters: Iterable[Parameter], *, sends_all: bool) -> int:
    """Return the size of a unit, in bytes, if none was given.

    If all elements are sent, units only decide when an exchange can start. There are then at least
    eight, unless they would be tiny, so that most of the backward overlaps an exchange. If elements
    are selected, units also affect which ones, so their size does not depend on the model's.
    """
    if not sends_all:
        return DEFAULT_UNIT
    nbytes = sum(parameter.nbytes for parameter in parameters)
    return min(DEFAULT_UNIT, max(LEAST_DEFAULT_UNIT, nbytes // 8))


def units_of(parameters: Iterable[Parameter], unit: UnitSize, min_numel: int) -> tuple[Unit, ...]:
    """Split `parameters`, in registration order, into units.

    Consecutive parameters of one type and device are put together in reverse order, the order in
    which their gradients arrive, up to `unit` bytes; a larger parameter is a unit of its own. With
    "parameter", each parameter of at least `min_numel` elements closes a unit. Dense parameters and
    parameters of fewer than `min_numel` elements are small: see Unit. Units are in the order of
    their first parameters.
    """
    filling: dict[tuple[torch.dtype, torch.device | None], _Open] = {}
    units: list[_Open] = []
    for parameter in reversed(list(parameters)):
        kind = (parameter.dtype, parameter.device)
        current = filling.get(kind)
        if current is None or not current.has_capacity(parameter, unit):
            current = filling[kind] = _Open(parameter.dtype)
            units.append(current)
        current.add(parameter, min_numel)
    return tuple(each.close() for each in units)
