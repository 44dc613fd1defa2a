"""The arguments of a SparseState: checked, comparable, saved with it. Without tensors or ranks."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, TypeVar

import torch
from torch.distributed import ReduceOp

from gtopk.ops.options import (
    DEFAULT_BLOCK,
    SparseOptions,
    check_accumulate,
    check_clipping,
    check_density,
    check_density_bounds,
    check_error_decay,
    check_momentum,
    check_whole,
    codes_dense,
    predicted_algorithms,
    sends_all,
)
from gtopk.state.rates import Scaler
from gtopk.state.units import Parameter, Unit, UnitSize, check_unit, default_unit, units_of

DEFAULT_DENSITY = 0.001
# The density of a warm-up phase: a fraction, or all elements.
Density = float | Literal["dense"]
# The density that a state is given: a fraction, or one chosen for each unit (adaptive.py).
Share = float | Literal["adaptive"]
# A phase of "dense" may have its own wire; without one its values are not coded.
Phase = tuple[Density, int] | tuple[Literal["dense"], int, str | None]
Warmup = Sequence[Phase]


class CommonArguments(TypedDict, total=False):
    """The arguments that every way to make a SparseState takes; SparseState explains them."""

    density_bounds: tuple[float, float]
    algorithm: str
    semantics: str
    select: str
    block: int
    put_back: str
    wire: str | None
    error_decay: float
    warmup: Warmup
    min_numel: int
    momentum: float
    nesterov: bool
    clip_norm: float | None
    clip: str
    accumulate: str
    scaler: Scaler | None


class ShardArguments(CommonArguments, total=False):
    """The arguments of fsdp_hook, whose units are FSDP's modules."""

    optimizer: torch.optim.Optimizer | None


class OptimizerArguments(CommonArguments, total=False):
    """The arguments of DistributedOptimizer, which already has the optimizer."""

    unit: UnitSize | None


class SparseArguments(ShardArguments, OptimizerArguments, total=False):
    """All arguments, as SparseState and attach take them."""


Function = TypeVar("Function", bound=Callable[..., object])


def shows(arguments: type[CommonArguments]) -> Callable[[Function], Function]:
    """Make help() and inspect show these arguments in place of a function's **arguments."""

    def show(function: Function) -> Function:
        signature = inspect.signature(function)
        own = [each for each in signature.parameters.values() if each.kind != each.VAR_KEYWORD]
        defaults = {each.name: each.default for each in dataclasses.fields(Config)}
        named = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=defaults.get(name),
                annotation=annotation,
            )
            for name, annotation in typing.get_type_hints(arguments).items()
        ]
        function.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*own, *named]
        )
        return function

    return show


@dataclass(frozen=True)
class Config:
    """The arguments of SparseState that affect results; SparseState explains them."""

    density: Share | Literal["dense"] | None  # None with algorithm "dense" becomes "dense"
    density_bounds: tuple[float, float] = (0.001, 0.1)
    unit: UnitSize | None = None
    algorithm: str = "gtopk"
    semantics: str = "any"
    select: str = "exact"
    block: int = DEFAULT_BLOCK
    put_back: str = "own"
    wire: str | None = None
    error_decay: float = 1.0
    warmup: Warmup = ()
    min_numel: int = 1024
    momentum: float = 0.0
    nesterov: bool = False
    clip_norm: float | None = None
    clip: str = "model"
    accumulate: str = "gradient"

    def __post_init__(self) -> None:
        """Raise ValueError if invalid, NotImplementedError for what is not implemented."""
        # Convert NumPy's numbers to Python's, which can be saved and compared anywhere.
        object.__setattr__(self, "density_bounds", check_density_bounds(self.density_bounds))
        object.__setattr__(self, "density", _checked_density(self.density, self.algorithm))
        if self.unit is not None:
            object.__setattr__(self, "unit", check_unit(self.unit))
        options = SparseOptions(
            None,
            self.density_bounds[0],
            self.algorithm,
            self.select,
            self.block,
            self.put_back,
            self.wire,
            self.semantics,
        )
        object.__setattr__(self, "block", options.block)
        object.__setattr__(self, "warmup", _checked_warmup(self.warmup))
        if sends_all(self.algorithm) and any(phase[0] != "dense" for phase in self.warmup):
            raise ValueError(
                f"gtopk: algorithm={self.algorithm!r} sends every element, and takes only "
                f"('dense', steps) and ('dense', steps, wire) in the warmup, given {self.warmup!r}"
            )
        object.__setattr__(self, "error_decay", check_error_decay(self.error_decay))
        if self.error_decay != 1 and not self._leaves_errors():
            raise ValueError(
                f"gtopk: error_decay={self.error_decay} has no effect: algorithm="
                f"{self.algorithm!r} on wire={self.wire!r} sends every element without rounding"
            )
        object.__setattr__(self, "min_numel", check_whole(self.min_numel, "min_numel", 0))
        object.__setattr__(self, "momentum", check_momentum(self.momentum))
        object.__setattr__(self, "nesterov", bool(self.nesterov))
        object.__setattr__(self, "clip_norm", check_clipping(self.clip_norm, self.clip))
        if self.nesterov and not self.momentum:
            raise ValueError("gtopk: nesterov=True needs a momentum above 0")
        check_accumulate(self.accumulate)
        if self.adaptive:
            self._check_adaptive()

    @classmethod
    def of(cls, density: Share | None, arguments: SparseArguments) -> Config:
        """Keep the arguments of a state that affect results."""
        own = {each.name for each in dataclasses.fields(cls)}
        given: dict[str, Any] = {name: each for name, each in arguments.items() if name in own}
        if density is None and not sends_all(given.get("algorithm")):
            density = DEFAULT_DENSITY
        return cls(density, **given)

    def _leaves_errors(self) -> bool:
        """Return whether some step leaves something in a residual."""
        phases = [phase[2] if len(phase) == 3 else None for phase in self.warmup]
        return not sends_all(self.algorithm) or any(map(codes_dense, [self.wire, *phases]))

    def _check_adaptive(self) -> None:
        """Raise ValueError if no exchange overlaps the backward, or no cost can be predicted."""
        if not self.automatic and self.algorithm not in predicted_algorithms():
            there = ", ".join(predicted_algorithms())
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
        """Raise NotImplementedError if the parameters are on more than one device."""
        devices = sorted({str(each.device or "cpu") for each in parameters})
        if len(devices) > 1:
            raise NotImplementedError(
                "gtopk: the parameters of a SparseState must be on one device, given some on "
                f"{' and '.join(devices)}"
            )

    def units_of(self, parameters: Sequence[Parameter]) -> tuple[Unit, ...]:
        """Split `parameters`, in registration order, into units."""
        unit = self.unit
        if unit is None:
            unit = default_unit(parameters, sends_all=sends_all(self.algorithm))
        return units_of(parameters, unit, self.min_numel)

    @property
    def adaptive(self) -> bool:
        """Return whether densities are chosen per unit."""
        return self.density == "adaptive"

    @property
    def automatic(self) -> bool:
        """Return whether algorithms are chosen per unit."""
        return self.algorithm == "auto"

    def options(self, density: Density, algorithm: str, wire: str | None) -> SparseOptions:
        """Return options to exchange a unit at this density, by this algorithm, on this wire.

        The algorithm must satisfy the configured semantics, or be the algorithm of a dense phase.
        """
        share = None if density == "dense" else density
        return _options(share, algorithm, self.select, self.block, self.put_back, wire)

    def density_at(self, step: int) -> Density | Share:
        """Return the density of the step-th backward (from 0), through the warm-up and after it."""
        phase = self._phase_at(step)
        density = self.density if phase is None else phase[0]
        assert density is not None
        return density

    def wire_at(self, step: int) -> str | None:
        """Return the wire of the step-th backward; dense phases have their own."""
        phase = self._phase_at(step)
        if phase is None or phase[0] != "dense":
            return self.wire
        return phase[2] if len(phase) == 3 else None

    def _phase_at(self, step: int) -> Phase | None:
        for phase in self.warmup:
            if step < phase[1]:
                return phase
            step -= phase[1]
        return None

    def with_density(self, density: Share) -> Config:
        """Return a copy with this density in every step, without warm-up."""
        return dataclasses.replace(self, density=density, warmup=())

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, to be saved and compared."""
        return {
            **dataclasses.asdict(self),
            "density_bounds": list(self.density_bounds),
            "warmup": [list(phase) for phase in self.warmup],
        }


# The result is cached because every backward asks for it, and making it checks it.
@functools.lru_cache(maxsize=1024)
def _options(
    density: float | None, algorithm: str, select: str, block: int, put_back: str, wire: str | None
) -> SparseOptions:
    return SparseOptions(None, density, algorithm, select, block, put_back, wire, op=ReduceOp.AVG)


def _checked_density(density: object, algorithm: str) -> Share | Literal["dense"]:
    dense = isinstance(density, str) and density == "dense"
    if sends_all(algorithm):
        if density is None or dense:
            return "dense"
        raise ValueError(
            f"gtopk: algorithm={algorithm!r} sends every element and takes no density, given "
            f"{density!r}"
        )
    if isinstance(density, str) and density == "adaptive":
        return "adaptive"
    if dense:
        raise ValueError(
            "gtopk: density must be a number in (0, 1] or 'adaptive', given 'dense': use "
            "algorithm='dense', or ('dense', steps) in the warmup"
        )
    return check_density(density, or_else=" or 'adaptive'")


def _checked_warmup(warmup: object) -> tuple[Phase, ...]:
    try:
        phases = [(density, steps, *wire) for density, steps, *wire in warmup]  # type: ignore[attr-defined]
        fit = all(len(phase) == 2 or (len(phase) == 3 and phase[0] == "dense") for phase in phases)
    except (TypeError, ValueError):
        fit = False
    if not fit:
        raise ValueError(
            "gtopk: warmup must be pairs (density, steps) or ('dense', steps), or ('dense', steps, "
            f"wire), given {warmup!r}"
        )
    return tuple(_checked_phase(*phase) for phase in phases)


def _checked_phase(density: object, steps: object, *wire: str | None) -> Phase:
    for each in wire:
        SparseOptions(algorithm="dense", wire=each)  # raises for an unknown wire
    if not isinstance(density, str) or density != "dense":
        density = check_density(density, "warmup's density", " or 'dense'")
    return (density, check_whole(steps, "warmup's steps", 0), *wire)  # type: ignore[return-value]
