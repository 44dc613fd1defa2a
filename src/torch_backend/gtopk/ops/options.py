"""The options of a sparse all-reduce as one value, checked by the core, and other checks."""

from __future__ import annotations

import functools
import math
import numbers
import operator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from torch.distributed import ReduceOp

from gtopk.core import _native

DEFAULT_BLOCK = 4096
# The core's integers have 64 bits; a k beyond the number of elements means all of them.
MOST = 2**63 - 1

ACCUMULATES = ("gradient", "update")
CLIPS = ("model", "unit")


@functools.cache
def algorithms() -> tuple[str, ...]:
    """Return the names of all algorithms."""
    return tuple(_native.load().algorithms())


@functools.cache
def selecting_algorithms() -> tuple[str, ...]:
    """Return the names of the algorithms in which each rank selects its own entries."""
    return tuple(_native.load().selecting_algorithms())


@functools.cache
def predicted_algorithms() -> tuple[str, ...]:
    """Return the names of the algorithms whose cost is predicted."""
    return tuple(_native.load().predicted_algorithms())


@functools.cache
def selectors() -> tuple[str, ...]:
    """Return the names of all selectors."""
    return tuple(_native.load().selectors())


@functools.cache
def wires() -> tuple[str, ...]:
    """Return the names of all wires."""
    return tuple(_native.load().wires())


class Traits(NamedTuple):
    """What a call's options alone determine; see CallTraits in gtopk/collectives.hpp."""

    selects: bool
    delivers_all: bool
    delivers_selections: bool
    whole_sums: bool
    empties_residual: bool
    adds_elements: bool
    rounds: bool
    per_block: bool


@dataclass(frozen=True)
class SparseOptions:
    """The options of one sparse all-reduce: checked on construction, and passed on unchanged.

    docs/algorithms.md explains them. Exactly one of k and density is given, except for "dense",
    which needs neither. The constructor raises ValueError for options that are invalid in any
    group.
    """

    k: int | None = None
    density: float | None = None
    algorithm: str = "gtopk"
    select: str = "exact"
    block: int = DEFAULT_BLOCK
    put_back: str = "own"
    wire: str | None = None
    semantics: str = "any"
    op: ReduceOp | ReduceOp.RedOpType = ReduceOp.SUM
    mean: str = "ranks"
    native: _native.SparseOptions = field(init=False, repr=False, compare=False)
    """The same as the native library's value."""

    def __post_init__(self) -> None:
        """Convert numbers to Python's types; the core checks their values, and the names."""
        object.__setattr__(self, "block", _whole(self.block, "block"))
        if self.k is not None:
            object.__setattr__(self, "k", _whole(self.k, "k"))
        if self.density is not None:
            density = _real(self.density)
            if math.isnan(density):
                raise ValueError(f"gtopk: density must be a number, given {self.density!r}")
            object.__setattr__(self, "density", density)
        for name in ("algorithm", "select", "put_back", "wire", "semantics", "mean"):
            text = getattr(self, name)
            if not isinstance(text, str) and (name, text) != ("wire", None):
                raise ValueError(f"gtopk: {name} must be a string, given {text!r}")
        if self.op not in (ReduceOp.SUM, ReduceOp.AVG):
            raise ValueError(f"gtopk: op must be ReduceOp.SUM or ReduceOp.AVG, given {self.op}")
        native = _native.sparse_options(
            self.k,
            self.density,
            self.algorithm,
            self.select,
            self.block,
            self.put_back,
            self.wire,
            self.semantics,
            int(cast("Any", self.op)),  # torch's stubs do not declare its number
            self.mean,
        )
        object.__setattr__(self, "native", native)

    @functools.cached_property
    def traits(self) -> Traits:
        """The traits of the call; raises ValueError for the algorithm "auto"."""
        return Traits(**self.native.traits())

    def most_delivered(self, d: int, ranks: int) -> int:
        """Return the largest number of entries that a result of d elements can have.

        Raise ValueError for the algorithm "auto".
        """
        return _most_delivered(self, d, ranks)


# The result is cached, as every backward asks for it.
@functools.lru_cache(maxsize=1024)
def _most_delivered(options: SparseOptions, d: int, ranks: int) -> int:
    return options.native.most_delivered(d, ranks)


@functools.lru_cache(maxsize=1024)
def traits_of(algorithm: str, wire: str | None) -> Traits:
    """Return the traits of every call that uses this algorithm on this wire.

    Raise ValueError for names that are unknown, or that cannot be combined.
    """
    return SparseOptions(density=1.0, algorithm=algorithm, wire=wire).traits


def sends_all(algorithm: str | None) -> bool:
    """Return whether the algorithm sends every element in every step, and takes no density."""
    return algorithm not in (None, "auto") and traits_of(algorithm, None).delivers_all


def codes_dense(wire: str | None) -> bool:
    """Return whether "dense" rounds its values on this wire, and keeps the rounding error."""
    return not traits_of("dense", wire).empties_residual


def check_density(density: object, name: str = "density", or_else: str = "") -> float:
    """Return the density, any real type, as a float; raise ValueError unless 0 < density <= 1."""
    share = _real(density)
    if not 0 < share <= 1:
        raise ValueError(f"gtopk: {name} must be a number in (0, 1]{or_else}, given {density!r}")
    return share


def check_density_bounds(bounds: Any) -> tuple[float, float]:
    """Return the bounds as floats; raise ValueError unless 0 < smallest <= largest <= 1."""
    try:
        found = tuple(check_density(each) for each in bounds)
    except (TypeError, ValueError):
        found = ()
    if len(found) != 2 or found[0] > found[1]:
        raise ValueError(
            "gtopk: density_bounds must be the smallest and the largest density, in (0, 1], given "
            f"{bounds!r}"
        )
    return found[0], found[1]


def check_accumulate(accumulate: str) -> None:
    """Raise ValueError for an unknown name."""
    _check("accumulate", accumulate, ACCUMULATES)


def check_momentum(momentum: object) -> float:
    """Return the momentum as a float; raise ValueError unless 0 <= momentum < 1."""
    m = _real(momentum)
    if not 0 <= m < 1:
        raise ValueError(f"gtopk: momentum must be a number in [0, 1), given {momentum!r}")
    return m


def check_error_decay(decay: object) -> float:
    """Return the decay as a float; raise ValueError unless 0 <= decay <= 1."""
    share = _real(decay)
    if not 0 <= share <= 1:
        raise ValueError(f"gtopk: error_decay must be a number in [0, 1], given {decay!r}")
    return share


def check_clipping(clip_norm: object, clip: str) -> float | None:
    """Return the norm as a float, or None; raise ValueError unless it is above 0.

    Without a norm, `clip` must be the default.
    """
    _check("clip", clip, CLIPS)
    if clip_norm is None:
        if clip != "model":
            raise ValueError(
                f"gtopk: clip={clip!r} needs clip_norm=, without which nothing is clipped"
            )
        return None
    norm = _real(clip_norm)
    if not 0 < norm < math.inf:
        raise ValueError(f"gtopk: clip_norm must be a finite number above 0, given {clip_norm!r}")
    return norm


def _real(number: object) -> float:
    """Return any real number as a float; everything else becomes NaN, which is in no range."""
    # NumPy registers its floats as numbers.Real, but np.float32 is not a subclass of float.
    if not isinstance(number, numbers.Real) or isinstance(number, bool):
        return math.nan
    try:
        return float(number)
    except OverflowError:
        return math.inf


def check_whole(number: object, name: str, least: int) -> int:
    """Return the number, of any integer type, as an int; raise ValueError unless >= `least`."""
    try:
        whole = operator.index(number)  # type: ignore[arg-type]
    except TypeError:
        whole = least - 1
    if isinstance(number, bool) or whole < least:
        raise ValueError(f"gtopk: {name} must be a whole number, {least} or more, given {number!r}")
    return whole


def _whole(number: object, name: str) -> int:
    """Return a number of any integer type as an int that the core can take."""
    try:
        whole = operator.index(number)  # type: ignore[arg-type]
    except TypeError:
        whole = None
    if whole is None or isinstance(number, bool):
        raise ValueError(f"gtopk: {name} must be a whole number, given {number!r}")
    return max(-MOST, min(whole, MOST))


def _check(what: str, name: object, there: tuple[str | None, ...]) -> None:
    if name in there:
        return
    names = ", ".join(repr(each) for each in there)
    raise ValueError(f"gtopk: {what}={name!r} is unknown; available: {names}")
