"""An outer optimizer's state as plain values: written here, and validated when read."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from gtopk.ops.options import check_whole
from gtopk.state.saved import check_place, place

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch.distributed as dist

    from gtopk.training.outer_exchange import Shared
    from gtopk.training.outer_presets import Settings

_FORMAT = 1
# What belongs to parameters, by the attribute that holds it.
_VECTORS = ("parameters", "velocity", "error")


def write(
    settings: Settings,
    steps: int,
    rounds: int,
    parts: Sequence[Shared],
    group: dist.ProcessGroup | None,
) -> dict[str, Any]:
    """Return a copy of everything, by the parameters' names and in their shapes."""
    return {
        "format": _FORMAT,
        "settings": dataclasses.asdict(settings),
        "place": place(group),
        "steps": steps,
        "rounds": rounds,
        **{name: _tensors(parts, name) for name in _VECTORS},
    }


def read(
    saved: object,
    settings: Settings,
    parts: Sequence[Shared],
    group: dist.ProcessGroup | None,
) -> tuple[int, int]:
    """Copy saved vectors into the parts; return the numbers of steps and rounds.

    Raise ValueError, before anything is written, for the state of another replica or number of
    replicas, of other settings or parameters, or for none.
    """
    _check(isinstance(saved, Mapping), "it is no dict", saved)
    assert isinstance(saved, Mapping)
    for key in ("format", "settings", "place", "steps", "rounds", *_VECTORS):
        _check(key in saved, f"it has no '{key}'", list(saved))
    if saved["format"] != _FORMAT:
        raise ValueError(f"gtopk: the saved state has format {saved['format']!r}, not {_FORMAT}")
    steps, rounds = (check_whole(saved[key], f"the saved {key}", 0) for key in ("steps", "rounds"))
    _check_settings(saved["settings"], settings)
    check_place(saved["place"], place(group))
    for name in _VECTORS:
        _check_tensors(saved[name], parts, name)
    for part in parts:
        for name in _VECTORS:
            vector = getattr(part, name)
            if vector is not None:
                part.part.fill(vector, saved[name])
    return steps, rounds


def _tensors(parts: Sequence[Shared], name: str) -> dict[str, torch.Tensor]:
    return {
        slot.name: tensor.clone()
        for part in parts
        if getattr(part, name) is not None
        for slot, tensor in part.part.tensors(getattr(part, name))
    }


def _check_settings(saved: object, settings: Settings) -> None:
    mine = dataclasses.asdict(settings)
    _check(isinstance(saved, Mapping) and saved.keys() == mine.keys(), "its settings", saved)
    assert isinstance(saved, Mapping)
    for name, value in mine.items():
        if saved[name] != value:
            raise ValueError(
                f"gtopk: the saved state has {name}={saved[name]!r}, this OuterOptimizer "
                f"{name}={value!r}: make it with the arguments of the run that saved"
            )


def _check_tensors(saved: object, parts: Sequence[Shared], name: str) -> None:
    _check(isinstance(saved, Mapping), f"'{name}' must be a dict", saved)
    assert isinstance(saved, Mapping)
    mine = {
        slot.name: slot.tensor.shape
        for part in parts
        if getattr(part, name) is not None
        for slot in part.part.slots
    }
    if saved.keys() != mine.keys():
        odd = min(saved.keys() ^ mine.keys())
        where = "saved, and not here" if odd in saved else "here, and not saved"
        raise ValueError(f"gtopk: the saved state is of other parameters: '{odd}' is {where}")
    for key, shape in mine.items():
        tensor = saved[key]
        if not isinstance(tensor, torch.Tensor) or tensor.shape != shape:
            found = list(tensor.shape) if isinstance(tensor, torch.Tensor) else repr(tensor)
            raise ValueError(
                f"gtopk: the saved '{name}' of '{key}' must have shape {list(shape)}, has {found}"
            )


def _check(holds: bool, what: str, given: object) -> None:
    if not holds:
        raise ValueError(f"gtopk: this is no saved OuterOptimizer: {what}; given {given!r:.200}")
