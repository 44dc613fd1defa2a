"""density="adaptive": chooses the density of each unit, and which units are merged.

choose() decides from times alone; adapt() measures these on all ranks and asks the planner for the
cost of an exchange.

Layer-wise Adaptive Gradient Sparsification (LAGS-SGD: Shi et al., arXiv 1911.08727): a layer sends
as much as can travel while the backward computes the next one. OMGS-SGD (Shi et al., INFOCOM 2020)
and before it MG-WFBP (arXiv 1811.11141): a layer waits for the next one if that costs less than
starting its own exchange.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist

from gtopk.core.groups import meeting_place
from gtopk.state.auto import predicted_seconds
from gtopk.state.units import Unit

if TYPE_CHECKING:
    from gtopk.state.config import Config

_UNSETTLED = 2  # skipped, because DDP rebuilds its buckets after the first
MEASURED = 5  # number of backwards


class Piece(NamedTuple):
    """A unit before densities are chosen."""

    elements: int
    kind: object
    """Only units of the same kind can be merged."""
    ready: float
    """Seconds from the backward's first complete unit to this one."""


class Layer(NamedTuple):
    """The choice for one unit. Times are seconds from the backward's first complete unit."""

    names: tuple[str, ...]
    """Its parameters, selected ones first."""
    elements: int
    """Elements that the selection covers."""
    ready: float
    """When its gradients are complete, on the slowest rank."""
    starts: float
    """When its exchange starts, after the previous ones have ended."""
    seconds: float
    """The predicted duration of its exchange."""
    density: float


class Choice(NamedTuple):
    """The numbers of the pieces that become one unit."""

    members: tuple[int, ...]
    starts: float
    seconds: float
    density: float


def choose(
    pieces: Sequence[Piece],
    startup: float,
    cost: Callable[[int, object, float], float],
    bounds: tuple[float, float],
    *,
    merges: bool = True,
) -> list[Choice]:
    """Choose densities, in the order in which pieces are ready.

    One exchange runs at a time, and should end before the next unit is ready: a unit gets the
    largest density within `bounds` that achieves this, or else the smallest. The last unit has
    nothing to overlap with. A piece waits for the next one, and is merged with it, if the next one
    is ready less than `startup` seconds after the first could start.

    Args:
        pieces: in any order.
        startup: seconds that an exchange takes even if it sends almost nothing.
        cost: returns the seconds for an exchange of this many elements, of this kind, at this
            density; the cost grows with the density.
        bounds: the smallest and the largest density.
        merges: whether pieces may be merged.
    """
    order = sorted(range(len(pieces)), key=lambda i: (pieces[i].ready, i))
    choices: list[Choice] = []
    members: list[int] = []
    free = 0.0
    for i, following in zip(order, [*order[1:], None], strict=True):
        members.append(i)
        begins = max(pieces[i].ready, free)
        ends = begins  # the end of the time in which the exchange can overlap
        if following is not None:
            ends = pieces[following].ready
            alike = pieces[following].kind == pieces[i].kind
            if merges and alike and ends - begins < startup:
                continue
        elements = sum(pieces[j].elements for j in members)

        def seconds(density: float, elements: int = elements, i: int = i) -> float:
            return cost(elements, pieces[i].kind, density) if elements else startup

        density = _largest(seconds, ends - begins, *bounds)
        took = seconds(density)
        choices.append(Choice(tuple(members), begins, took, density))
        free = begins + took
        members = []
    return choices


def _largest(seconds: Callable[[float], float], budget: float, least: float, most: float) -> float:
    """Return the largest density within `budget` seconds, to 1/256 of the log range."""
    if seconds(most) <= budget:
        return most
    if seconds(least) > budget:
        return least
    low, high, ratio = 0, 256, most / least
    while high - low > 1:
        middle = (low + high) // 2
        if seconds(least * ratio ** (middle / 256)) <= budget:
            low = middle
        else:
            high = middle
    return float(least * ratio ** (low / 256))


class Stopwatch:
    """Records when units were complete in the last backwards of this rank."""

    def __init__(
        self,
        units: int,
        clock: Callable[[], Any] = time.perf_counter,
        between: Callable[[Any, Any], float] = lambda first, then: float(then - first),
    ) -> None:
        """Start with no measurements.

        clock: returns the current moment. between: returns the seconds between two such moments.
        """
        self._units = units
        self._clock = clock
        self._between = between
        self._backwards = 0
        self._now: dict[int, Any] = {}  # in chronological order
        self._seen: list[dict[int, Any]] = []

    def begin(self) -> None:
        """Begin a backward."""
        self._now = {}

    def complete(self, unit: int) -> None:
        """Record that a unit's last gradient has arrived."""
        self._now[unit] = self._clock()

    def end(self) -> None:
        """Count a backward that has succeeded, unless a unit took no part in it."""
        self._backwards += 1
        if self._backwards > _UNSETTLED and len(self._now) == self._units:
            self._seen = [*self._seen, self._now][-MEASURED:]

    def ready(self) -> list[float] | None:
        """Return each unit's median seconds after the first; None until enough were measured."""
        if len(self._seen) < MEASURED:
            return None
        seconds = []
        for seen in self._seen:
            first = next(iter(seen.values()))
            seconds.append([self._between(first, seen[i]) for i in range(self._units)])
        return [statistics.median(each) for each in zip(*seconds, strict=True)]


def adapt(
    config: Config,
    units: Sequence[Unit],
    ready: Sequence[float],
    group: dist.ProcessGroup | None,
    *,
    merges: bool,
) -> list[Layer]:
    """Choose layers, the same ones on all ranks. Collective.

    ready: each unit's seconds on this rank; the slowest rank's times are used.
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

    # Begin with the largest unit, so that links measured for it need not be measured again.
    whole = sum(unit.selected_numel for unit in units)
    cost(whole, units[0].dtype, config.density_bounds[0])
    # The cost of one element is the startup cost, because almost all of it is messages.
    startup = cost(1, units[0].dtype, config.density_bounds[0])
    chosen = choose(pieces, startup, cost, config.density_bounds, merges=merges)
    layers = []
    for each in chosen if merges else sorted(chosen):  # unmerged units keep their numbers
        unit = merged([units[i] for i in each.members])
        at = max(pieces[i].ready for i in each.members)
        layers.append(
            Layer(unit.names, unit.selected_numel, at, each.starts, each.seconds, each.density)
        )
    return layers


def stopwatch_of(units: Sequence[Unit]) -> Stopwatch:
    """Return a stopwatch that measures time where the gradients are.

    On a device it records when the current stream reaches the point, not when the host does.
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
    """Merge units as the layers do; return None unless each unit is in one layer as a whole."""
    home = {name: unit for unit in units for name in unit.names}
    made = []
    for layer in layers:
        known = [home[name] for name in layer.names if name in home]
        unit = merged(list(dict.fromkeys(known))) if known else None
        if unit is None or unit.names != tuple(layer.names):
            return None
        made.append(unit)
    return tuple(made) if sum(len(unit.names) for unit in made) == len(home) else None
