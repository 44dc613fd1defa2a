"""The options of a sparse all-reduce as one value, and checks of the values they can take."""

from __future__ import annotations

import functools
import math
import numbers
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from torch.distributed import ReduceOp

from gtopk.core import _native

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_BLOCK = 4096
# The core's integers have 64 bits; a k beyond the number of elements means all of them.
MOST = 2**63 - 1

ACCUMULATES = ("gradient", "update")
CLIPS = ("model", "unit")
MEANS = ("ranks", "contributors")
PUT_BACKS = ("own", "merged")
SEMANTICS = ("dense", "exact_sum", "gtopk", "any")


@functools.cache
def algorithms() -> tuple[str, ...]:
    """Return the names of all algorithms."""
    return tuple(_native.load().algorithms())


@functools.cache
def selecting_algorithms() -> tuple[str, ...]:
    """Return the names of the algorithms with which each rank selects its own entries."""
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


@dataclass(frozen=True)
class SparseOptions:
    """The options of one sparse all-reduce: checked on construction, and passed on unchanged.

    docs/algorithms.md explains them. Exactly one of k and density is given, except for "dense",
    which needs neither.
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

    def __post_init__(self) -> None:
        """Raise ValueError for an invalid value; convert all other numbers to Python's types."""
        _check("algorithm", self.algorithm, (*algorithms(), "auto"))
        _check("select", self.select, selectors())
        _check("put_back", self.put_back, PUT_BACKS)
        _check("mean", self.mean, MEANS)
        check_wire(self.wire)
        _check("semantics", self.semantics, SEMANTICS)
        object.__setattr__(self, "block", _checked_block(self.block, self.select))
        if self.op not in (ReduceOp.SUM, ReduceOp.AVG):
            raise ValueError(f"gtopk: op must be ReduceOp.SUM or ReduceOp.AVG, given {self.op}")
        if self.mean != "ranks" and self.op != ReduceOp.AVG:
            raise ValueError(f"gtopk: mean={self.mean!r} needs op=ReduceOp.AVG, given {self.op}")
        if self.algorithm != "dense" or self.k is not None or self.density is not None:
            object.__setattr__(self, "k", _checked_k(self.k, self.density))
        if self.density is not None:
            object.__setattr__(self, "density", check_density(self.density))

    @functools.cached_property
    def arguments(self) -> Mapping[str, str | float]:
        """Return the options under the names and types of the native library's operators."""
        return {
            "k": self.k or 0,
            "density": self.density or 0.0,
            "block": self.block,
            "algorithm": self.algorithm,
            "select": self.select,
            "wire": wire_named(self.wire),
            "mean": self.mean,
            "put_back": self.put_back,
            "op": int(cast("Any", self.op)),  # torch's stubs do not know its number
            "semantics": self.semantics,
        }

    def most_delivered(self, d: int, ranks: int) -> int:
        """Return the largest number of entries that a result of d elements can have.

        Raise ValueError for options that cannot be combined.
        """
        return _most_delivered(self, d, ranks)


@functools.lru_cache(maxsize=1024)
def _most_delivered(options: SparseOptions, d: int, ranks: int) -> int:
    asked = {name: each for name, each in options.arguments.items() if name != "put_back"}
    return cast("int", _native.load().most_delivered(d, ranks, **asked))


def check_wire(wire: str | None) -> None:
    """Raise ValueError for an unknown wire format."""
    if wire is not None:
        _check("wire", wire, (None, *wires()))


def wire_named(wire: str | None) -> str:
    """Return the core's name of a wire; None is the lossless one."""
    return "lossless" if wire is None else wire


def codes_dense(wire: str | None) -> bool:
    """Return whether "dense" rounds its values on this wire, and keeps the rounding error."""
    return wire_named(wire) not in ("lossless", "raw")


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
    """Return any real number as a float; for everything else NaN, which is in no range."""
    # NumPy registers its floats as numbers.Real; np.float32 is not a float.
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


def _checked_block(block: object, select: str) -> int:
    """Return the elements of a block as an int; raise ValueError unless 1 or more.

    For selectors other than "block" it must be the default.
    """
    elements = min(check_whole(block, "block", 1), MOST)
    if select != "block" and elements != DEFAULT_BLOCK:
        raise ValueError(f"gtopk: block={block} needs select='block', given select={select!r}")
    return elements


def _checked_k(k: object, density: object) -> int | None:
    """Return k as an int, or None if a density is given instead."""
    if (k is None) == (density is None):
        raise ValueError(f"gtopk: give exactly one of k and density, given k={k}, {density=}")
    if k is None:
        return None
    try:
        entries = operator.index(k)  # type: ignore[arg-type]
    except TypeError:
        entries = None
    if entries is None or isinstance(k, bool):
        raise ValueError(f"gtopk: k must be a whole number, given {k!r}")
    if entries < 1:
        raise ValueError(f"gtopk: k must be at least 1, given {k!r}")
    return min(entries, MOST)


def _check(what: str, name: object, there: tuple[str | None, ...]) -> None:
    if name in there:
        return
    names = ", ".join(repr(each) for each in there)
    raise ValueError(f"gtopk: {what}={name!r} is unknown; available: {names}")
