"""The arguments of a SparseState: checked, comparable, saved with it. Knows no tensors or ranks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gtopk.ops.options import (
    WITHOUT_PREDICTION,
    algorithms,
    check_accumulate,
    check_algorithm,
    check_block,
    check_clipping,
    check_density,
    check_density_bounds,
    check_momentum,
    check_put_back,
    check_select,
    check_semantics,
    check_whole,
    check_wire,
    most_delivered,
)
from gtopk.state.units import Parameter, UnitSize, check_unit

# The density of a warm-up phase: a fraction, or everything.
Density = float | Literal["dense"]
# What a state is given: a share, or one that is found for each unit (adaptive.py).
Share = float | Literal["adaptive"]
Warmup = Sequence[tuple[Density, int]]


@dataclass(frozen=True)
class Config:
    """The arguments of SparseState that affect results; see there."""

    density: Share
    density_bounds: tuple[float, float]
    unit: UnitSize
    algorithm: str
    semantics: str
    select: str
    block: int
    put_back: str
    wire: str | None
    warmup: tuple[tuple[Density, int], ...]
    min_numel: int
    momentum: float
    nesterov: bool
    clip_norm: float | None
    clip: str
    accumulate: str

    def __post_init__(self) -> None:
        """Raise ValueError, or NotImplementedError for what is not implemented."""
        # Numbers of NumPy's become Python's, which can be saved and compared anywhere.
        object.__setattr__(self, "density_bounds", check_density_bounds(self.density_bounds))
        if not self.adaptive:
            object.__setattr__(self, "density", _checked_density(self.density))
        object.__setattr__(self, "unit", check_unit(self.unit))
        check_algorithm(self.algorithm)
        check_semantics(self.semantics)
        check_select(self.select)
        check_put_back(self.put_back)
        check_wire(self.wire)
        object.__setattr__(self, "block", check_block(self.block, self.select))
        # Do they go together? What `auto` may choose always has topk in it.
        self.most_delivered(
            1, 1, self.density_bounds[0], "topk" if self.automatic else self.algorithm
        )
        object.__setattr__(self, "warmup", _checked_warmup(self.warmup))
        object.__setattr__(self, "min_numel", check_whole(self.min_numel, "min_numel", 0))
        object.__setattr__(self, "momentum", check_momentum(self.momentum))
        object.__setattr__(self, "nesterov", bool(self.nesterov))
        object.__setattr__(self, "clip_norm", check_clipping(self.clip_norm, self.clip))
        if self.nesterov and not self.momentum:
            raise ValueError("gtopk: nesterov=True needs a momentum above 0")
        check_accumulate(self.accumulate)
        if self.adaptive:
            self._check_adaptive()

    def _check_adaptive(self) -> None:
        """Raise ValueError if no exchange overlaps the backward, or nobody predicts its cost."""
        if self.algorithm in WITHOUT_PREDICTION:
            there = ", ".join(each for each in algorithms() if each not in WITHOUT_PREDICTION)
            raise ValueError(
                "gtopk: density='adaptive' needs to know what an exchange costs, and "
                f"{self.algorithm!r} has no prediction; available: {there}, auto"
            )
        if self.unit == "model":
            raise ValueError(
                "gtopk: density='adaptive' needs exchanges that overlap with the backward, given "
                "unit='model': use unit='parameter' or a number of bytes"
            )
        if self.clip_norm is not None and self.clip == "model":
            raise ValueError(
                "gtopk: density='adaptive' needs exchanges that overlap with the backward, given "
                "clip_norm= with clip='model': use clip='unit'"
            )

    def check_parameters(self, parameters: Iterable[Parameter]) -> None:
        """Raise NotImplementedError for parameters of more than one device."""
        devices = sorted({str(each.device or "cpu") for each in parameters})
        if len(devices) > 1:
            raise NotImplementedError(
                "gtopk: a SparseState takes parameters on one device, given some on "
                f"{' and '.join(devices)}"
            )

    @property
    def adaptive(self) -> bool:
        """Whether densities are chosen unit by unit."""
        return self.density == "adaptive"

    @property
    def automatic(self) -> bool:
        """Whether algorithms are chosen per unit."""
        return self.algorithm == "auto"

    def most_delivered(self, d: int, ranks: int, density: float, algorithm: str) -> int:
        """Return how many entries a unit's result has at most; ValueError if it cannot have one."""
        return most_delivered(
            d,
            ranks,
            density=density,
            block=self.block,
            algorithm=algorithm,
            select=self.select,
            wire=self.wire,
            semantics=self.semantics,
        )

    def density_at(self, step: int) -> Density | Share:
        """Return the density of the step-th backward (from 0), through the warm-up and after it."""
        for density, steps in self.warmup:
            if step < steps:
                return density
            step -= steps
        return self.density

    def with_density(self, density: Share) -> Config:
        """Return the same with this density in every step: no warm-up is left."""
        return dataclasses.replace(self, density=density, warmup=())

    def as_dict(self) -> dict[str, Any]:
        """Return plain values only, to be saved and compared."""
        return {
            **dataclasses.asdict(self),
            "density_bounds": list(self.density_bounds),
            "warmup": [list(phase) for phase in self.warmup],
        }


def _checked_density(density: object) -> float:
    try:
        return check_density(density)
    except ValueError:
        dense = isinstance(density, str) and density == "dense"
        raise ValueError(
            f"gtopk: density must be a number in (0, 1] or 'adaptive', given {density!r}"
            + (": use algorithm='dense', or ('dense', steps) in the warmup" if dense else "")
        ) from None


def _checked_warmup(warmup: object) -> tuple[tuple[Density, int], ...]:
    try:
        phases = [(density, steps) for density, steps in warmup]  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        raise ValueError(
            f"gtopk: warmup must be pairs (density, steps) or ('dense', steps), given {warmup!r}"
        ) from None
    return tuple(
        (_phase(density), check_whole(steps, "warmup's steps", 0)) for density, steps in phases
    )


def _phase(density: object) -> Density:
    if isinstance(density, str) and density == "dense":
        return "dense"
    try:
        return check_density(density)
    except ValueError:
        raise ValueError(
            f"gtopk: warmup's density must be a number in (0, 1] or 'dense', given {density!r}"
        ) from None
