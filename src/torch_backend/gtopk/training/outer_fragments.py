"""Fragments: the parts of a model that take turns, and the step of each turn."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def layer_of(name: str) -> str:
    """Return a parameter's layer: its name up to the first number, else up to the first dot.

    "blocks.3.norm.weight" belongs to "blocks.3", "tokens.weight" to "tokens".
    """
    numbered = re.match(r"(?:.*?\.)??\d+(?=\.|$)", name)
    return numbered[0] if numbered else name.split(".")[0]


def fragments_of(names: Iterable[str], count: int) -> list[list[str]]:
    """Deal the parameters out to fragments, layer by layer: layer i to fragment i mod count.

    Each fragment then has layers from all depths (Streaming DiLoCo's strided pattern). Raise
    ValueError if there are fewer layers than fragments.
    """
    layers: dict[str, list[str]] = {}
    for name in names:
        layers.setdefault(layer_of(name), []).append(name)
    if count > len(layers):
        raise ValueError(
            f"gtopk: fragments={count} needs as many layers, but the model has {len(layers)}: "
            f"{', '.join(repr(each) for each in layers)}"
        )
    dealt: list[list[str]] = [[] for _ in range(count)]
    for i, some in enumerate(layers.values()):
        dealt[i % count].extend(some)
    return dealt


def turns_of(inner_steps: int, fragments: int) -> dict[int, int]:
    """Return the fragment whose turn comes at each step of a round; the first turn is at 0."""
    return {each * inner_steps // fragments: each for each in range(fragments)}


def smallest_gap(inner_steps: int, fragments: int) -> int:
    """Return the fewest steps between one turn and the next."""
    turns = [*turns_of(inner_steps, fragments), inner_steps]
    return min(later - turn for turn, later in itertools.pairwise(turns))
