"""A saved state as plain values, which are validated when read. kept.py writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist

from gtopk.core.groups import has_ranks_that_change
from gtopk.ops.options import algorithms, check_whole
from gtopk.ops.sparse_all_reduce import is_selector_state, new_selector_state
from gtopk.state.adaptive import Layer
from gtopk.state.auto import Choice

if TYPE_CHECKING:
    from gtopk.state.config import Config
    from gtopk.state.units import Unit

FORMAT = 1


class IncompatibleKeys(NamedTuple):
    """What was ignored when a state was loaded, by the parameters' names."""

    missing_keys: list[str]
    """Parameters whose residual here is unchanged, as no saved one fits it."""
    unexpected_keys: list[str]
    """Parameters whose saved residual fits none here."""


@dataclass(frozen=True)
class Saved:
    """A saved state that has been read; see Kept.state_dict()."""

    units: list[dict[str, Any]]
    step: int
    place: Mapping[str, int] | None
    residuals: Mapping[str, torch.Tensor]
    select: str | None
    selector_states: list[torch.Tensor]
    """The state of that selector, one per unit; empty if the state was saved without it."""
    asked: Mapping[str, object]
    """The arguments on which the choices of `auto` depend."""
    choices: list[Choice]
    """The choices of `auto`; empty for another algorithm."""
    momenta: Mapping[str, torch.Tensor]
    """Empty for a state without momentum."""
    accumulate: str
    bounds: object
    """The bounds within which densities were chosen."""
    layers: list[Layer]
    """The choices of "adaptive"; empty for another density."""

    def layers_for(self, config: Config) -> list[Layer]:
        """Return the layers if `config` is adaptive within the same bounds; otherwise none."""
        same = config.adaptive and self.bounds == list(config.density_bounds)
        return self.layers if same else []

    def selector_states_for(self, config: Config, mine: Sequence[Unit]) -> list[torch.Tensor]:
        """Return the selector states if selector and units are the same; otherwise none."""
        same = self.select == config.select and self.units == layout(mine)
        return self.selector_states if same else []

    def choices_for(self, config: Config, mine: Sequence[Unit]) -> list[Choice]:
        """Return the choices if units and the relevant arguments are the same; otherwise none."""
        same = self.asked == asked_of(config) and self.units == layout(mine)
        return self.choices if same else []


def read(saved: object) -> Saved:
    """Read a saved state; raise ValueError naming the first missing or invalid key."""
    _check(isinstance(saved, Mapping), "it is not a dict", saved)
    assert isinstance(saved, Mapping)
    for key in ("format", "units", "step", "place", "residuals"):
        _check(key in saved, f"it has no '{key}'", list(saved))
    if saved["format"] != FORMAT:
        raise ValueError(f"gtopk: the saved state has format {saved['format']!r}, not {FORMAT}")
    units, where, residuals = saved["units"], saved["place"], saved["residuals"]
    _check(
        isinstance(units, (list, tuple)) and all(_is_unit(each) for each in units),
        "'units' must be a list of what each unit holds",
        units,
    )
    check_whole(saved["step"], "the saved state's 'step'", 0)
    _check(
        where is None
        or (
            isinstance(where, Mapping)
            and all(isinstance(where.get(key), int) for key in ("rank", "ranks"))
        ),
        "'place' must be None or hold 'rank' and 'ranks'",
        where,
    )
    _check_tensors(residuals, "residual", "residuals")
    momenta = saved.get("momenta", {})  # a state saved by an older version has none
    _check_tensors(momenta, "momentum", "momenta")
    select, states = _selector(saved, len(units))
    asked, choices = _auto(saved, len(units))
    told = saved.get("config")
    accumulate = told.get("accumulate", "gradient") if isinstance(told, Mapping) else "gradient"
    bounds, layers = _adaptive(saved)
    return Saved(
        list(units),
        int(saved["step"]),
        where,
        residuals,
        select,
        states,
        asked,
        choices,
        momenta,
        accumulate,
        bounds,
        layers,
    )


def _check_tensors(tensors: object, one: str, all_of_them: str) -> None:
    _check(isinstance(tensors, Mapping), f"'{all_of_them}' must be a dict", tensors)
    assert isinstance(tensors, Mapping)
    for name, tensor in tensors.items():
        _check(isinstance(name, str), f"a name in '{all_of_them}' is not a string", name)
        _check(
            isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided,
            f"the {one} of '{name}' must be a dense tensor",
            tensor,
        )


_LIST = (list, tuple)


def _part(saved: Mapping[str, Any], key: str, what: str, **kinds: Any) -> Any:
    """Return a part of a state, with values of these types; None if an older version saved none."""
    part = saved.get(key)
    if part is not None:
        holds = isinstance(part, Mapping) and all(
            isinstance(part.get(name), kind) for name, kind in kinds.items()
        )
        _check(holds, f"'{key}' must hold {what}", part)
    return part


def _selector(saved: Mapping[str, Any], units: int) -> tuple[str | None, list[torch.Tensor]]:
    """Read the selector states."""
    what = "the name 'select' and a list 'states'"
    part = _part(saved, "selector", what, select=str, states=_LIST)
    if part is None:
        return None, []
    states = list(part["states"])
    _check(
        len(states) == units,
        f"'selector' must have a state for each of {units} units, has {len(states)}",
        states,
    )
    for i, state in enumerate(states):
        _check(
            is_selector_state(state),
            f"the selector's state of unit {i} must be {_said(new_selector_state())}",
            _said(state),
        )
    return part["select"], states


def asked_of(config: Config) -> dict[str, object]:
    """Return the part of the configuration that determines what `auto` chooses."""
    names = ("algorithm", "semantics", "select", "block", "wire")
    return {name: getattr(config, name) for name in names}


def _auto(saved: Mapping[str, Any], units: int) -> tuple[Mapping[str, object], list[Choice]]:
    """Read the choices of `auto`."""
    what = "a dict 'asked' and a list 'choices'"
    part = _part(saved, "auto", what, asked=Mapping, choices=_LIST)
    if part is None:
        return {}, []
    for choice in part["choices"]:
        _check(
            isinstance(choice, (list, tuple))
            and len(choice) == len(Choice._fields)
            and isinstance(choice[0], int)
            and 0 <= choice[0] < units
            and isinstance(choice[1], float)
            and choice[2] in algorithms()
            and isinstance(choice[3], str),
            f"a choice of 'auto' must be a unit below {units}, a density, the name of an algorithm "
            "and a reason",
            choice,
        )
    return part["asked"], [Choice(*each) for each in part["choices"]]


def _adaptive(saved: Mapping[str, Any]) -> tuple[object, list[Layer]]:
    """Read the choices of an adaptive density."""
    part = _part(saved, "adaptive", "'bounds' and a list 'layers'", layers=_LIST)
    if part is None:
        return None, []
    for layer in part["layers"]:
        _check(
            isinstance(layer, (list, tuple))
            and len(layer) == len(Layer._fields)
            and isinstance(layer[0], (list, tuple))
            and all(isinstance(name, str) for name in layer[0])
            and isinstance(layer[1], int)
            and all(isinstance(each, (int, float)) for each in layer[2:])
            and 0 < layer[-1] <= 1,
            "a layer of 'adaptive' must be names, elements, three times and a density in (0, 1]",
            layer,
        )
    return part.get("bounds"), [Layer(tuple(each[0]), *each[1:]) for each in part["layers"]]


def layout(units: Sequence[Unit]) -> list[dict[str, Any]]:
    """Return the units as plain values, to be saved and compared."""
    return [
        {
            "dtype": str(unit.dtype),
            "large": [[each.name, list(each.shape)] for each in unit.large],
            "small": [[each.name, list(each.shape)] for each in unit.small],
        }
        for unit in units
    ]


def check_units(mine: Sequence[Unit], saved: Sequence[Mapping[str, Any]], whose: str) -> None:
    """Raise ValueError showing the first unit in which `saved`, a layout(), differs."""
    here = layout(mine)
    if here == list(saved):
        return
    first = next(
        (i for i, (a, b) in enumerate(zip(here, saved, strict=False)) if a != b),
        min(len(here), len(saved)),
    )
    raise ValueError(
        f"gtopk: {whose} has other units: {len(here)} here, {len(saved)} there; the first that "
        f"differs is unit {first}: {dict(enumerate(here)).get(first)} here, "
        f"{dict(enumerate(saved)).get(first)} there"
    )


def check_parameters(mine: Sequence[Unit], saved: Sequence[Mapping[str, Any]]) -> None:
    """Raise ValueError naming the first parameter that is missing or differs on one side."""
    here, there = _parameters(layout(mine)), _parameters(saved)
    for name in [*here, *there]:
        if here.get(name) != there.get(name):
            raise ValueError(
                f"gtopk: the saved state is for other parameters: '{name}' is "
                f"{here.get(name, 'absent')} here and {there.get(name, 'absent')} in the saved "
                "state; strict=False loads what fits"
            )


def place(
    group: dist.ProcessGroup | None, shard: tuple[int, int] | None = None
) -> dict[str, int] | None:
    """Return the rank and number of ranks, if known, and the same for shards, if any."""
    if has_ranks_that_change(group):
        found = {"rank": group.rank(), "ranks": group.size()}
    elif not dist.is_available() or not dist.is_initialized():
        return None
    else:
        found = {"rank": dist.get_rank(group), "ranks": dist.get_world_size(group)}
    return found if shard is None else {**found, "shard": shard[0], "shards": shard[1]}


def check_place(saved: Mapping[str, int] | None, mine: Mapping[str, int] | None) -> None:
    """Raise ValueError for a state of another rank or of another number of ranks."""
    if saved is None or mine is None or saved == mine:
        return
    shards = [
        f"shard {each['shard']} of {each.get('shards')}" if "shard" in each else "whole parameters"
        for each in (saved, mine)
    ]
    if shards[0] != shards[1]:
        raise ValueError(
            f"gtopk: the saved state is that of {shards[0]}, but this one is of {shards[1]}: "
            "gtopk.save and gtopk.load move residuals to other shards"
        )
    if saved["ranks"] != mine["ranks"]:
        raise ValueError(
            f"gtopk: the saved state is that of one of {saved['ranks']} ranks, but this run has "
            f"{mine['ranks']}: use gtopk.save and gtopk.load, which divide residuals among a "
            "different number of ranks"
        )
    raise ValueError(
        f"gtopk: the saved state is that of rank {saved['rank']}, but this is rank {mine['rank']}: "
        "load the state that this rank saved"
    )


def check_accumulate(saved: str, config: Config) -> None:
    """Raise ValueError if saved residuals are gradients but updates are wanted, or vice versa."""
    if saved != config.accumulate:
        raise ValueError(
            f"gtopk: the saved state has accumulate={saved!r}, but this one has "
            f"{config.accumulate!r}: residuals of gradients and of updates are not interchangeable"
        )


def _parameters(units: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return each parameter's shape, type and kind as text, independent of units."""
    return {
        name: f"{list(shape)} {unit['dtype']} {kind}"
        for unit in units
        for kind in ("large", "small")
        for name, shape in unit[kind]
    }


def _is_unit(unit: object) -> bool:
    return (
        isinstance(unit, Mapping)
        and isinstance(unit.get("dtype"), str)
        and all(
            isinstance(unit.get(kind), (list, tuple))
            and all(
                isinstance(each, (list, tuple))
                and len(each) == 2
                and isinstance(each[0], str)
                and isinstance(each[1], (list, tuple))
                for each in unit[kind]
            )
            for kind in ("large", "small")
        )
    )


def _said(tensor: object) -> str:
    if not isinstance(tensor, torch.Tensor):
        return repr(tensor)
    return f"{tensor.dtype} of shape {list(tensor.shape)}"


def _check(holds: bool, what: str, given: object) -> None:
    if not holds:
        raise ValueError(f"gtopk: this is not a saved SparseState: {what}; given {given!r:.200}")
