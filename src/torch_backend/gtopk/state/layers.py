"""density="adaptive": what was measured on all ranks becomes the units and densities of a state.

What is chosen, and from what, is adaptive.py's; what an exchange costs is the planner's.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from gtopk.core.groups import meeting_place
from gtopk.state.adaptive import Layer, Piece, Stopwatch, choose
from gtopk.state.auto import predicted_seconds
from gtopk.state.units import Unit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gtopk.state.config import Config


def adapt(
    config: Config,
    units: Sequence[Unit],
    ready: Sequence[float],
    group: dist.ProcessGroup | None,
    *,
    merges: bool,
) -> list[Layer]:
    """Choose layers, alike on all ranks. Collective.

    ready: each unit's seconds on this rank; the slowest rank's count.
    """
    slowest = torch.tensor(ready, dtype=torch.float64, device=meeting_place(group))
    dist.all_reduce(slowest, dist.ReduceOp.MAX, group=group)
    pieces = [
        Piece(unit.selected_numel, unit.dtype, seconds)
        for unit, seconds in zip(units, slowest.tolist(), strict=True)
    ]

    @functools.cache
    def cost(elements: int, dtype: object, density: float) -> float:
        assert isinstance(dtype, torch.dtype)
        return predicted_seconds(config, elements, dtype, density, group)

    # The largest first: links that were measured for it need not be measured for the others.
    whole = sum(unit.selected_numel for unit in units)
    cost(whole, units[0].dtype, config.density_bounds[0])
    # What an exchange takes whatever it sends: that of one element is all messages.
    startup = cost(1, units[0].dtype, config.density_bounds[0])
    chosen = choose(pieces, startup, cost, config.density_bounds, merges=merges)
    layers = []
    for each in chosen if merges else sorted(chosen):  # who cannot merge keeps their numbers
        unit = merged([units[i] for i in each.members])
        at = max(pieces[i].ready for i in each.members)
        layers.append(
            Layer(unit.names, unit.selected_numel, at, each.starts, each.seconds, each.density)
        )
    return layers


def stopwatch_of(units: Sequence[Unit]) -> Stopwatch:
    """Return a stopwatch that takes the time where the gradients are.

    On a device that is when its current stream gets there, not when the host does.
    """
    device = torch.device(units[0].device)
    if device.type == "cpu":
        return Stopwatch(len(units))

    def mark() -> torch.Event:
        event = torch.Event(device, enable_timing=True)
        event.record(torch.accelerator.current_stream(device))
        return event

    def between(first: torch.Event, then: torch.Event) -> float:
        then.synchronize()
        return float(first.elapsed_time(then)) / 1000

    return Stopwatch(len(units), mark, between)


def merged(units: Sequence[Unit]) -> Unit:
    """Return these units as one."""
    return Unit(
        units[0].dtype,
        tuple(each for unit in units for each in unit.large),
        tuple(each for unit in units for each in unit.small),
    )


def units_of_layers(units: Sequence[Unit], layers: Sequence[Layer]) -> tuple[Unit, ...] | None:
    """Merge units as the layers do; None unless each unit is in one layer as a whole."""
    home = {name: unit for unit in units for name in unit.names}
    made = []
    for layer in layers:
        known = [home[name] for name in layer.names if name in home]
        unit = merged(list(dict.fromkeys(known))) if known else None
        if unit is None or unit.names != tuple(layer.names):
            return None
        made.append(unit)
    return tuple(made) if sum(len(unit.names) for unit in made) == len(home) else None
