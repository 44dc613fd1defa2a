"""The methods of the simulation, by name: an exchange, and where it stands in a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from exchanges import EF21, Coded, Exact, Exchange, GTopK, PowerSGD, TopK
from sketches import Sketch, TrueTopK

WIRES = ("bf16", "int8", "4bit", "2bit", "ternary", "sign")
OUTER = ("tokens.weight", "head.weight")


@dataclass(frozen=True)
class Method:
    """One way to exchange."""

    make: Callable[[], Exchange]
    dense: tuple[str, ...] = ()
    """Parameters that travel uncompressed."""
    after: bool = False
    """Whether ranks step first, each with an optimizer of its own, and exchange their updates."""
    own_momentum: bool = False
    """Whether the exchange has the momentum in the optimizer's place."""


def _coded(wire: str, **more: Any) -> Method:
    return Method(lambda: Coded(wire, **more))


# Without a density.
PLAIN: dict[str, Method] = {
    "dense": Method(Exchange),
    **{wire: _coded(wire) for wire in WIRES},
    **{f"{wire}-no-feedback": _coded(wire, feedback=False) for wire in WIRES},
    "powersgd-1": Method(lambda: PowerSGD(1)),
    "powersgd-4": Method(lambda: PowerSGD(4)),
    # As SparseLoCo exchanges, in every step.
    "after-adamw": Method(
        lambda: TopK(64 / 4096, block=4096, divisor="contributors", decay=0.95), after=True
    ),
    "after-adamw-mean": Method(lambda: TopK(64 / 4096, block=4096, decay=0.95), after=True),
    "after-adamw-2bit": Method(
        lambda: TopK(64 / 4096, block=4096, divisor="contributors", decay=0.95, wire="2bit"),
        after=True,
    ),
    "after-adamw-4bit-dense": replace(_coded("4bit"), after=True),
}


def _sparse(kind: type[TopK], **more: Any) -> Callable[[float], Method]:
    own = "momentum" in more or "inertia" in more
    return lambda density: Method(lambda: kind(density, **more), own_momentum=own)


# Of a density.
SPARSE: dict[str, Callable[[float], Method]] = {
    "topk": _sparse(TopK),
    "gtopk": _sparse(GTopK),
    "gtopk-merged": _sparse(GTopK, put_back="merged"),
    "exact": _sparse(Exact),
    "true-topk": _sparse(TrueTopK),
    "sketch": _sparse(Sketch),
    "topk-momentum": _sparse(TopK, momentum=0.9),
    "topk-update": _sparse(TopK, update=True),
    "topk-decay": _sparse(TopK, decay=0.95),
    "topk-contributors": _sparse(TopK, divisor="contributors"),
    "topk-4bit": _sparse(TopK, wire="4bit"),
    "topk-layer-wise": _sparse(TopK, layer_wise=True),
    "topk-falling": _sparse(TopK, falling=True),
    "ef21": _sparse(EF21),
    "ef21-momentum": _sparse(EF21, inertia=0.1),
    "topk-outer-dense": lambda density: Method(lambda: TopK(density), dense=OUTER),
    "gtopk-outer-dense": lambda density: Method(lambda: GTopK(density), dense=OUTER),
}


def method_of(name: str, density: float | None) -> Method:
    """The method, of that density where it has one."""
    return PLAIN[name] if name in PLAIN else SPARSE[name](density or 1.0)
