"""What `auto` has chosen for the units of a SparseState: once for each density, and kept.

Costs are measured, so that another run may choose otherwise. Choices are saved with the state: a
resumed run repeats them, and its bits are those of the run that was not interrupted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gtopk.planning import plan

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch.distributed as dist

    from gtopk.config import Config
    from gtopk.planning import Plan
    from gtopk.units import Unit


class Choice(NamedTuple):
    """The algorithm of one unit at one density."""

    unit: int
    density: float
    algorithm: str
    reason: str


def plan_of(config: Config, unit: Unit, density: float, group: dist.ProcessGroup | None) -> Plan:
    """Plan the exchange of a unit. Collective."""
    planned = plan(
        unit.selected_numel,
        density=density,
        dtype=unit.dtype,
        select=config.select,
        block=config.block,
        wire=config.wire,
        semantics=config.semantics,
        group=group,
    )
    assert planned is not None  # a rank of the group
    return planned


class Pinned:
    """The choices of one state."""

    def __init__(self, choices: Iterable[Choice] = ()) -> None:
        """Take what was chosen before."""
        self._choices = {(each.unit, each.density): each for each in choices}

    def choose(
        self,
        config: Config,
        units: Sequence[Unit],
        density: float,
        group: dist.ProcessGroup | None,
    ) -> None:
        """Choose for each unit that has no choice at this density yet.

        Collective where there is one: all ranks call it with the same arguments, and have the same
        choices.
        """
        by_shape: dict[tuple[object, ...], Choice] = {}  # units of a shape have one plan
        for index, unit in enumerate(units):
            if not unit.selected_numel or (index, density) in self._choices:
                continue
            shape = (unit.selected_numel, unit.dtype)
            if shape not in by_shape:
                planned = plan_of(config, unit, density, group)
                by_shape[shape] = Choice(index, density, planned["algorithm"], planned["reason"])
            self._choices[index, density] = by_shape[shape]._replace(unit=index)

    def algorithm(self, unit: int, density: float) -> str:
        """Return what was chosen."""
        return self._choices[unit, density].algorithm

    def choices(self) -> list[Choice]:
        """Return all, by density in the order of their first use, and by unit."""
        return list(self._choices.values())
