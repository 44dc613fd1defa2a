"""What `auto` has chosen for the units of a SparseState: once for each density, and kept.

Costs are measured, so another run may choose differently. Choices are saved with the state: a
resumed run repeats them, with the bits of an uninterrupted run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gtopk.ops.plan import plan

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
    """Plan the exchange of a unit of so many elements. Collective."""
    planned = plan(
        elements,
        density=density,
        dtype=dtype,
        select=config.select,
        block=config.block,
        wire=config.wire,
        semantics=config.semantics,
        group=group,
    )
    assert planned is not None  # a rank of the group
    return planned


def predicted_seconds(
    config: Config,
    elements: int,
    dtype: torch.dtype,
    density: float,
    group: dist.ProcessGroup | None,
) -> float:
    """Predict the exchange by the configured algorithm, which has a prediction. Collective."""
    planned = plan_of(config, elements, dtype, density, group)
    algorithm = planned["algorithm"] if config.automatic else config.algorithm
    return planned["predictions"][algorithm]["seconds"]


class Pinned:
    """The choices of one state."""

    def __init__(self, choices: Iterable[Choice] = ()) -> None:
        """Take what was chosen before."""
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
        by_shape: dict[tuple[object, ...], Choice] = {}  # units of a shape have one plan
        for index, (unit, density) in enumerate(zip(units, densities, strict=True)):
            if not unit.selected_numel or (index, density) in self._choices:
                continue
            shape = (unit.selected_numel, unit.dtype, density)
            if shape not in by_shape:
                planned = plan_of(config, unit.selected_numel, unit.dtype, density, group)
                by_shape[shape] = Choice(index, density, planned["algorithm"], planned["reason"])
            self._choices[index, density] = by_shape[shape]._replace(unit=index)

    def algorithm(self, unit: int, density: float) -> str:
        """Return what was chosen."""
        return self._choices[unit, density].algorithm

    def choices(self) -> list[Choice]:
        """Return all, by density in the order of their first use, and by unit."""
        return list(self._choices.values())
