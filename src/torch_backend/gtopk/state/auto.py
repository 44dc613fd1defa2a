"""The choices of `auto` for the units of a SparseState: made once per density, then kept.

Costs are measured, so another run may choose differently. Choices are saved with the state: a
resumed run repeats them, and is bitwise equal to an uninterrupted run.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

from gtopk.ops.plan import plan_with

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch
    import torch.distributed as dist

    from gtopk.ops.plan import Plan
    from gtopk.state.config import Config
    from gtopk.state.units import Unit


class Choice(NamedTuple):
    """The algorithm of one unit at one density."""

    unit: int
    density: float
    algorithm: str
    reason: str


def plan_of(
    config: Config,
    elements: int,
    dtype: torch.dtype,
    density: float,
    group: dist.ProcessGroup | None,
) -> Plan:
    """Plan the exchange of a unit of `numel` elements. Collective."""
    options = config.options(density, "auto", config.wire)
    options = dataclasses.replace(options, semantics=config.semantics)
    planned = plan_with(options, elements, dtype, group)
    assert planned is not None  # only ranks of the group come here
    return planned


def predicted_seconds(
    config: Config,
    elements: int,
    dtype: torch.dtype,
    density: float,
    group: dist.ProcessGroup | None,
) -> float:
    """Predict the exchange with the configured algorithm, which has a prediction. Collective."""
    planned = plan_of(config, elements, dtype, density, group)
    algorithm = planned["algorithm"] if config.automatic else config.algorithm
    return planned["predictions"][algorithm]["seconds"]


class Pinned:
    """The choices of one state."""

    def __init__(self, choices: Iterable[Choice] = ()) -> None:
        """Start with earlier choices."""
        self._choices = {(each.unit, each.density): each for each in choices}

    def choose(
        self,
        config: Config,
        units: Sequence[Unit],
        densities: Sequence[float],
        group: dist.ProcessGroup | None,
    ) -> None:
        """Choose for each unit that has no choice at its density yet.

        Collective if there is such a unit: all ranks call it with the same arguments, and have the
        same choices.
        """
        new = [
            (index, unit, density)
            for index, (unit, density) in enumerate(zip(units, densities, strict=True))
            if unit.selected_numel and (index, density) not in self._choices
        ]
        plans: dict[tuple[object, ...], Plan] = {}  # units of the same shape share one
        # Begin with the largest unit; its measured costs serve all others.
        for _, unit, density in sorted(new, key=lambda each: -each[1].selected_numel):
            shape = (unit.selected_numel, unit.dtype, density)
            if shape not in plans:
                plans[shape] = plan_of(config, unit.selected_numel, unit.dtype, density, group)
        for index, unit, density in new:
            planned = plans[unit.selected_numel, unit.dtype, density]
            self._choices[index, density] = Choice(
                index, density, planned["algorithm"], planned["reason"]
            )

    def algorithm(self, unit: int, density: float) -> str:
        """Return the choice."""
        return self._choices[unit, density].algorithm

    def choices(self) -> list[Choice]:
        """Return all choices, by density in the order of first use, and by unit."""
        return list(self._choices.values())
