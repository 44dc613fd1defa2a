"""What a SparseState was told: checked, comparable, saved with it. Knows no tensors or ranks."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gtopk.choices import check_algorithm, check_density, check_put_back, check_select, check_wire
from gtopk.units import UnitSize, check_unit

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Config:
    """The arguments of SparseState that decide on results; see there."""

    density: float
    unit: UnitSize
    algorithm: str
    select: str
    put_back: str
    wire: str | None
    warmup: tuple[tuple[float, int], ...]
    min_numel: int

    def __post_init__(self) -> None:
        """Raise ValueError, or NotImplementedError for what is not there yet."""
        check_density(self.density)
        check_unit(self.unit)
        check_algorithm(self.algorithm)
        check_select(self.select)
        check_put_back(self.put_back)
        check_wire(self.wire)
        object.__setattr__(self, "warmup", _checked_warmup(self.warmup))
        if not isinstance(self.min_numel, int) or self.min_numel < 0:
            raise ValueError(f"gtopk: min_numel must be 0 or more, given {self.min_numel!r}")

    def density_at(self, step: int) -> float:
        """Return the density of the step-th backward (from 0), through the warm-up and after it."""
        for density, steps in self.warmup:
            if step < steps:
                return density
            step -= steps
        return self.density

    def check_equal(self, saved: Mapping[str, Any]) -> None:
        """Raise ValueError that names what `saved` (of an as_dict()) says otherwise."""
        mine = self.as_dict()
        differences = [
            f"{key} is {mine.get(key)!r} here and {saved.get(key)!r} there"
            for key in sorted({*mine, *saved})
            if mine.get(key) != saved.get(key)
        ]
        if differences:
            raise ValueError(
                "gtopk: the saved state is of another configuration: " + "; ".join(differences)
            )

    def as_dict(self) -> dict[str, Any]:
        """Return plain values only, to be saved."""
        return {**dataclasses.asdict(self), "warmup": [list(phase) for phase in self.warmup]}


def _checked_warmup(warmup: object) -> tuple[tuple[float, int], ...]:
    shape = f"gtopk: warmup must be pairs (density, steps), given {warmup!r}"
    try:
        phases = [(density, steps) for density, steps in warmup]  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        raise ValueError(shape) from None
    for density, steps in phases:
        check_density(density, "warmup's density")
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
            raise ValueError(f"{shape}: steps must be whole numbers, 0 or more")
    return tuple((float(density), steps) for density, steps in phases)
