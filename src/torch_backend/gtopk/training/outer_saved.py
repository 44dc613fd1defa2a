"""An outer optimizer's state as plain values: written here, and validated when read."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from gtopk.ops.options import check_whole
from gtopk.state.saved import check_place, place
from gtopk.training.outer_exchange import Outcome
from gtopk.training.outer_rounds import Pending
from gtopk.training.outer_shards import part_of
from gtopk.training.parameters import is_distributed

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch.distributed as dist

    from gtopk.training.outer_exchange import Shared
    from gtopk.training.outer_parts import Part
    from gtopk.training.outer_presets import Settings
    from gtopk.training.outer_rounds import Rounds

_FORMAT = 1
# These attributes hold the vectors that belong to parameters.
_VECTORS = ("parameters", "velocity", "error")


def write(settings: Settings, rounds: Rounds, group: dist.ProcessGroup | None) -> dict[str, Any]:
    """Return a copy of everything, by parameter name, in the shapes of this rank's parts.

    Waits for an exchange that is under way; over a ReplicaGroup, it is saved as one that has to
    begin again.
    """
    parts = rounds.parts()
    shards = _shards(parts)
    changes = rounds.members is not None
    pending, waiting = rounds.pending, rounds.waiting
    if changes and pending is not None:
        waiting = [pending.fragment, *waiting]
    member = {
        "joined": rounds.joined,
        "waiting": list(waiting),
        "anchor": _tensors(parts, [each.anchor for each in parts]),
    }
    return {
        "format": _FORMAT,
        "settings": dataclasses.asdict(settings),
        "place": None if changes else place(group),
        "steps": rounds.step,
        "rounds": rounds.number - (changes and pending is not None),
        "pending": None if changes or pending is None else _written(pending, rounds),
        **{name: _tensors(parts, [getattr(each, name) for each in parts]) for name in _VECTORS},
        **({"shards": shards} if shards else {}),
        **(member if changes else {}),
    }


def read(
    saved: object, settings: Settings, rounds: Rounds, group: dist.ProcessGroup | None
) -> None:
    """Copy a saved state into the rounds.

    Raise ValueError, before anything is written, if the state is missing, or belongs to another
    replica, another number of replicas, other settings or other parameters.
    """
    _check(isinstance(saved, Mapping), "it is not a dict", saved)
    assert isinstance(saved, Mapping)
    for key in ("format", "settings", "place", "steps", "rounds", "pending", *_VECTORS):
        _check(key in saved, f"it has no '{key}'", list(saved))
    if saved["format"] != _FORMAT:
        raise ValueError(f"gtopk: the saved state has format {saved['format']!r}, not {_FORMAT}")
    steps, number = (check_whole(saved[key], f"the saved {key}", 0) for key in ("steps", "rounds"))
    _check_settings(saved["settings"], settings)
    if rounds.members is None:
        check_place(saved["place"], place(group))
    parts = rounds.parts()
    _check_shards(saved.get("shards", {}), _shards(parts))
    for name in _VECTORS:
        kept = [each.part for each in parts if getattr(each, name) is not None]
        _check_tensors(saved[name], kept, name)
    pending = None if saved["pending"] is None else _read(saved["pending"], rounds)
    waiting = [check_whole(each, "a saved fragment", 0) for each in saved.get("waiting", [])]
    _check(all(each < len(rounds.fragments) for each in waiting), "'waiting' is invalid", waiting)
    anchors = saved.get("anchor", {})  # for parts whose rounds this replica has missed
    _check(isinstance(anchors, Mapping), "'anchor' must be a dict", anchors)
    kept = [each.part for each in parts if each.part.slots[0].name in anchors]
    _check_tensors(anchors, kept, "anchor")
    for part in parts:
        part.anchor = _filled(part.part, anchors) if part.part in kept else None
        for name in _VECTORS:
            vector = getattr(part, name)
            if vector is not None:
                part.part.fill(vector, saved[name])
    rounds.resume(steps, number, pending, waiting)
    if rounds.members is not None:
        rounds.members.resume(joined=bool(saved.get("joined", True)))


def _written(pending: Pending, rounds: Rounds) -> dict[str, Any]:
    outcome, parts = pending.outcome(), rounds.fragments[pending.fragment]
    return {
        "fragment": pending.fragment,
        "due": pending.due,
        "takes_part": pending.takes_part,
        "participants": list(outcome.participants),
        "means": None if outcome.means is None else _tensors(parts, outcome.means),
        "errors": _tensors(parts, outcome.errors),
    }


def _read(saved: object, rounds: Rounds) -> Pending:
    keys = ("fragment", "due", "takes_part", "participants", "means", "errors")
    _check(
        isinstance(saved, Mapping) and saved.keys() == set(keys), "its 'pending' is invalid", saved
    )
    assert isinstance(saved, Mapping)
    fragment = check_whole(saved["fragment"], "the saved fragment", 0)
    _check(fragment < len(rounds.fragments), "its 'fragment' is invalid", fragment)
    parts = rounds.fragments[fragment]
    vectors: dict[str, list[torch.Tensor | None] | None] = {"means": None, "errors": None}
    for name in vectors:
        if saved[name] is None:
            continue
        # Errors are kept for all parts or for none.
        kept = [each.part for each in parts if saved[name]]
        _check_tensors(saved[name], kept, name)
        vectors[name] = [_filled(each.part, saved[name]) for each in parts]
    outcome = Outcome(list(saved["participants"]), vectors["means"], vectors["errors"] or [])  # type: ignore[arg-type]
    due = check_whole(saved["due"], "the saved 'due'", 0)
    return Pending(fragment, due, bool(saved["takes_part"]), outcome)


def _filled(part: Part, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
    if not tensors:
        return None
    vector = part.new()
    part.fill(vector, tensors)
    return vector


def _tensors(
    parts: Sequence[Shared], vectors: Sequence[torch.Tensor | None]
) -> dict[str, torch.Tensor]:
    return {
        slot.name: tensor.clone()
        for part, vector in zip(parts, vectors, strict=True)
        if vector is not None
        for slot, tensor in part.part.tensors(vector)
    }


def _shards(parts: Sequence[Shared]) -> dict[str, str]:
    """Return which part of each sharded parameter this rank has."""
    slots = [slot for each in parts for slot in each.part.slots]
    return {each.name: part_of(each.parameter) for each in slots if is_distributed(each.parameter)}


def _check_shards(saved: object, mine: Mapping[str, str]) -> None:
    _check(isinstance(saved, Mapping), "its 'shards' are invalid", saved)
    assert isinstance(saved, Mapping)
    for name in sorted(saved.keys() | mine.keys()):
        there, here = (each.get(name, "not sharded or not here") for each in (saved, mine))
        if there != here:
            raise ValueError(
                f"gtopk: the saved state is for other shards: '{name}' is {there} in it, but "
                f"{here} on this rank. Load each rank's own state, on as many shards"
            )


def _check_settings(saved: object, settings: Settings) -> None:
    mine = dataclasses.asdict(settings)
    # A setting that an earlier version lacked has the value that is now its default.
    then = {each.name: each.default for each in dataclasses.fields(settings)}
    always = {name for name, default in then.items() if default is dataclasses.MISSING}
    _check(
        isinstance(saved, Mapping) and always <= saved.keys() <= mine.keys(),
        "its settings are invalid",
        saved,
    )
    assert isinstance(saved, Mapping)
    for name, value in mine.items():
        was = saved.get(name, then[name])
        if was != value:
            raise ValueError(
                f"gtopk: the saved state has {name}={was!r}, but this OuterOptimizer has "
                f"{name}={value!r}: make it with the arguments of the run that saved the state"
            )


def _check_tensors(saved: object, parts: Sequence[Part], name: str) -> None:
    """Raise ValueError unless `saved` has exactly one tensor per parameter of these parts."""
    _check(isinstance(saved, Mapping), f"'{name}' must be a dict", saved)
    assert isinstance(saved, Mapping)
    mine = {slot.name: slot.tensor.shape for part in parts for slot in part.slots}
    if saved.keys() != mine.keys():
        odd = min(saved.keys() ^ mine.keys())
        where = "saved, but not here" if odd in saved else "here, but not saved"
        raise ValueError(f"gtopk: the saved state is for other parameters: '{odd}' is {where}")
    for key, shape in mine.items():
        tensor = saved[key]
        if not isinstance(tensor, torch.Tensor) or tensor.shape != shape:
            found = list(tensor.shape) if isinstance(tensor, torch.Tensor) else repr(tensor)
            raise ValueError(
                f"gtopk: the saved '{name}' of '{key}' must have shape {list(shape)}, has {found}"
            )


def _check(holds: bool, what: str, given: object) -> None:
    if not holds:
        raise ValueError(f"gtopk: this is not a saved OuterOptimizer: {what}; given {given!r:.200}")
