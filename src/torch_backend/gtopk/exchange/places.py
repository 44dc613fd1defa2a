"""Maps the gradients in a DDP bucket to units and positions. Uses no tensors and no exchange.

DDP stores a bucket's gradients one after the other, without gaps. The set of gradients in a bucket
and their order change after the first step. Units do not depend on either; they only look up
positions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gtopk.state.units import Unit


@dataclass(frozen=True)
class ParameterSlot:
    """A parameter's unit, and its position among the unit's large or small parameters."""

    name: str
    unit: int
    large: bool
    position: int
    numel: int


@dataclass
class BucketPart:
    """The part of a unit in one bucket: pieces of the bucket, each with its first position."""

    unit: int
    names: set[str] = field(default_factory=set)
    large: list[tuple[int, int]] = field(default_factory=list)
    """Pairs of the position of the piece's first parameter and the piece's number in the bucket."""
    small: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True)
class Layout:
    """A bucket cut into pieces, each of which belongs to one unit."""

    sizes: list[int]
    """Elements of each piece, in the order of the bucket."""
    parts: list[BucketPart]
    """One part for each unit in the bucket, in the order of the units."""


def slots_of(units: Sequence[Unit]) -> dict[str, ParameterSlot]:
    """Return the slot of each parameter, by name."""
    return {
        parameter.name: ParameterSlot(parameter.name, i, large, position, parameter.numel)
        for i, unit in enumerate(units)
        for large, parameters in ((True, unit.large), (False, unit.small))
        for position, parameter in enumerate(parameters)
    }


def layout_of(bucket: Iterable[ParameterSlot]) -> Layout:
    """Cut a bucket that holds these parameters, in this order.

    Neighbours in the bucket that are also neighbours in their unit form one piece.
    """
    sizes: list[int] = []
    parts: dict[int, BucketPart] = {}
    before: ParameterSlot | None = None
    for slot in bucket:
        part = parts.setdefault(slot.unit, BucketPart(slot.unit))
        part.names.add(slot.name)
        if before is not None and _follows(slot, before):
            sizes[-1] += slot.numel
        else:
            pieces = part.large if slot.large else part.small
            pieces.append((slot.position, len(sizes)))
            sizes.append(slot.numel)
        before = slot
    return Layout(sizes, [parts[i] for i in sorted(parts)])


def _follows(slot: ParameterSlot, before: ParameterSlot) -> bool:
    same = (slot.unit, slot.large) == (before.unit, before.large)
    return same and slot.position == before.position + 1
