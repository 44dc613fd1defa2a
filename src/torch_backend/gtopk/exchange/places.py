"""Which units' gradients a DDP bucket holds, and where. Knows no tensors and no exchange.

DDP stores a bucket's gradients one after the other, without gaps. Which ones, and in what order,
changes after the first step: units do not depend on it, they only look up where gradients are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gtopk.state.units import Unit


@dataclass(frozen=True)
class Place:
    """Where a parameter belongs: its unit, and its position among its large or small ones."""

    name: str
    unit: int
    large: bool
    position: int
    numel: int


@dataclass
class Share:
    """What one bucket holds of one unit: pieces of the bucket, each with its first position."""

    unit: int
    names: set[str] = field(default_factory=set)
    large: list[tuple[int, int]] = field(default_factory=list)
    """Pairs: the position of the piece's first parameter, and the piece's number in the bucket."""
    small: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True)
class Layout:
    """A bucket, cut into pieces that each belong together."""

    sizes: list[int]
    """Elements of each piece, in the order of the bucket."""
    shares: list[Share]
    """One for each unit that is in it, in the order of the units."""


def places_of(units: Sequence[Unit]) -> dict[str, Place]:
    """Return the place of each parameter, by name."""
    return {
        parameter.name: Place(parameter.name, i, large, position, parameter.numel)
        for i, unit in enumerate(units)
        for large, parameters in ((True, unit.large), (False, unit.small))
        for position, parameter in enumerate(parameters)
    }


def layout_of(bucket: Iterable[Place]) -> Layout:
    """Cut a bucket that holds these parameters, in this order.

    Neighbours that are also neighbours in their unit form one piece.
    """
    sizes: list[int] = []
    shares: dict[int, Share] = {}
    before: Place | None = None
    for place in bucket:
        share = shares.setdefault(place.unit, Share(place.unit))
        share.names.add(place.name)
        if before is not None and _follows(place, before):
            sizes[-1] += place.numel
        else:
            pieces = share.large if place.large else share.small
            pieces.append((place.position, len(sizes)))
            sizes.append(place.numel)
        before = place
    return Layout(sizes, [shares[i] for i in sorted(shares)])


def _follows(place: Place, before: Place) -> bool:
    same = (place.unit, place.large) == (before.unit, before.large)
    return same and place.position == before.position + 1
