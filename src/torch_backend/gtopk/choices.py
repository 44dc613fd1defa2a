"""The names that arguments can take: which are there, and which are not there yet."""

from __future__ import annotations

ALGORITHMS = ("gtopk", "gtopk-tree", "topk", "dense")
SELECTORS = ("exact",)
PUT_BACKS = ("own", "merged")

_PLANNED = {
    "algorithm": ("exact", "rs-ag", "sketch", "auto"),
    "select": ("gaussian", "sampled", "threshold"),
    "put_back": (),
    "wire": ("bf16", "fp16"),
}


def check_algorithm(algorithm: str) -> None:
    """Raise ValueError for an unknown name, NotImplementedError for one that is not there yet."""
    _check("algorithm", algorithm, ALGORITHMS)


def check_select(select: str) -> None:
    """Raise ValueError for an unknown name, NotImplementedError for one that is not there yet."""
    _check("select", select, SELECTORS)


def check_put_back(put_back: str) -> None:
    """Raise ValueError for an unknown name."""
    _check("put_back", put_back, PUT_BACKS)


def check_wire(wire: str | None) -> None:
    """Raise ValueError for an unknown wire format, NotImplementedError for one not there yet."""
    if wire is not None:
        _check("wire", wire, (None,))


def check_density(density: float, name: str = "density") -> float:
    """Return the share as a float; raise ValueError unless 0 < density <= 1."""
    if isinstance(density, bool) or not isinstance(density, (int, float)) or not 0 < density <= 1:
        raise ValueError(f"gtopk: {name} must be a number in (0, 1], given {density!r}")
    return float(density)


def _check(what: str, name: object, there: tuple[str | None, ...]) -> None:
    if name in there:
        return
    names = ", ".join(repr(each) for each in there)
    if name in _PLANNED[what]:
        raise NotImplementedError(f"gtopk: {what}={name!r} is not there yet; there are: {names}")
    raise ValueError(f"gtopk: {what}={name!r} is unknown; there are: {names}")
