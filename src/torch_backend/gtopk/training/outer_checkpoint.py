"""gtopk.save and gtopk.load of an OuterOptimizer: all replicas in one folder.

The first replica writes the shared parameters and the momentum, once. Each replica writes its own
state: the error, the inner optimizer's state, the model, and the result of an exchange that is
under way. If R' replicas load what R replicas saved, the errors of replica r go to replica r mod
R', like residuals. If a replica's ranks hold shards, there is a folder for each shard.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from gtopk.core.groups import number_in, rank_in
from gtopk.state.fingerprint import check_alike
from gtopk.training import folders
from gtopk.training.outer_shards import from_saved, to_save
from gtopk.training.versions import load_version, save_version

if TYPE_CHECKING:
    from gtopk.training.outer import OuterOptimizer
    from gtopk.training.versions import Votes

_SHARED_FILE = "outer.pt"
_SHARED = ("format", "settings", "steps", "rounds", "parameters", "velocity")
_OWN = ("pending", "error")
_MEMBER = ("joined", "waiting", "anchor")  # keys of a member of a ReplicaGroup
_NOT_SHARED = (*_OWN, *_MEMBER, "place")
_REPLICA = {"outer", "inner", "model"}


def save(outer: OuterOptimizer, path: str, *, overwrite: bool) -> None:
    """Write all replicas' states into the folder; collective. See gtopk.save."""
    votes = outer.replica.votes()
    votes.all_succeed(lambda: votes.check_path(path))
    votes.all_succeed(lambda: _check_met(outer))
    _check_steps(outer)
    write = functools.partial(_write, outer, votes)
    save_version(path, votes, write, lambda _: False, overwrite=overwrite)


def load(outer: OuterOptimizer, path: str) -> None:
    """Resume from what save() wrote; collective. See gtopk.load."""
    votes = outer.replica.votes()
    saved = load_version(path, votes, functools.partial(_found, outer))
    votes.all_succeed(lambda: _take(outer, saved))
    _check_steps(outer)


def is_in(folder: str) -> bool:
    """Return whether a version's folder has the checkpoint of an OuterOptimizer."""
    return bool(_folders_in(folder))


def _check_met(outer: OuterOptimizer) -> None:
    """Raise RuntimeError if members of a ReplicaGroup may have other shared parameters."""
    if not outer.has_met:
        raise RuntimeError(
            "gtopk: gtopk.save needs replicas that have the same shared parameters: call it after "
            "a step() that has ended an exchange, before the group is configured again"
        )


def _check_steps(outer: OuterOptimizer) -> None:
    """Raise ValueError on every rank if the numbers of steps differ. Collective."""
    said = (
        "the replicas' OuterOptimizers are not at the same step",
        "Call gtopk.save and gtopk.load after the same step on every replica",
    )
    lines = [("the number of steps is", str(outer.steps))]
    for group in (outer.group, *outer.replica.groups):
        outer.replica.all_succeed(functools.partial(check_alike, lines, group, said))


def _write(outer: OuterOptimizer, votes: Votes, root: str) -> None:
    replicas, rank = dist.get_world_size(outer.group), rank_in(outer.group)
    shard = outer.replica.shard
    folder = folders.folder_of(root, shard)

    def write() -> None:
        os.makedirs(folder, exist_ok=True)
        inner, model = outer.state_dict(), outer.model.state_dict()
        all_of_it = inner.pop("gtopk")
        if rank == 0:
            shared = {key: each for key, each in all_of_it.items() if key not in _NOT_SHARED}
            _put({**shared, "replicas": replicas}, os.path.join(folder, _SHARED_FILE))
        own = {key: all_of_it[key] for key in (*_OWN, *_MEMBER) if key in all_of_it}
        model.update(to_save(model, model))
        saved = {"outer": own, "inner": _each_state(outer, inner, to_save), "model": model}
        _put(saved, _file_of(folder, rank))

    votes.all_succeed(write)
    every = [root]
    if shard is not None:
        every = [folders.folder_of(root, (i, shard[1])) for i in range(shard[1])]
    votes.first_succeeds(lambda: _check_seen(every, replicas, number_in(outer.group)))


def _each_state(
    outer: OuterOptimizer, inner: Mapping[str, Any], change: Callable[..., dict[Any, Any]]
) -> dict[str, Any]:
    """Return the inner optimizer's state, with each parameter's state changed by this function."""
    of = dict(enumerate(each for group in outer.param_groups for each in group["params"]))
    states = {
        key: change(state, dict.fromkeys(state, of[key])) if key in of else state
        for key, state in inner["state"].items()
    }
    return {**inner, "state": states}


def _put(saved: Mapping[str, Any], path: str) -> None:
    with open(path, "wb") as file:
        torch.save(saved, file)
        file.flush()
        os.fsync(file.fileno())


def _file_of(root: str, rank: int) -> str:
    return os.path.join(root, f"replica-{rank}.pt")


def _check_seen(every: Sequence[str], replicas: int, number: int) -> None:
    for path in (_file_of(folder, rank) for folder in every for rank in range(replicas)):
        if not os.path.exists(path):
            raise FileNotFoundError(
                f"gtopk: rank {number} does not see {path}, which another rank has "
                "written: gtopk.save needs a file system that all ranks share. Without one, save "
                "each rank's state_dict() and its model's"
            )


def _found(outer: OuterOptimizer, root: str) -> dict[str, Any]:
    """Return what _take() needs: this replica's own state, or its part if the number differs."""
    if not is_in(root):
        what = "is that of a SparseState" if folders.shards_in(root) else "is not complete"
        raise ValueError(f"gtopk: the checkpoint {root} {what}: there is no {_SHARED_FILE} in it")
    root = _own_folder(outer, root)
    shared = _get(os.path.join(root, _SHARED_FILE), {*_SHARED, "replicas"})
    there, here = shared.pop("replicas"), dist.get_world_size(outer.group)
    rank = rank_in(outer.group)
    replica = _get(_file_of(root, rank % there), _REPLICA)
    if there != here:
        replica["outer"] |= _own_of_others(root, rank, there, here)
    if rank >= there:
        replica["outer"].pop("anchor", None)  # the replica starts with the shared parameters
    place = {"rank": rank, "ranks": here}
    inner = {**replica["inner"], "gtopk": {**shared, **replica["outer"], "place": place}}
    return {"inner": inner, "model": replica["model"], "joins": rank >= there}


def _own_folder(outer: OuterOptimizer, root: str) -> str:
    """Return the folder of this rank's shard."""
    mine = folders.folder_of(root, outer.replica.shard)
    if not os.path.exists(os.path.join(mine, _SHARED_FILE)):
        there = [os.path.relpath(each, root) for each in _folders_in(root)]
        raise NotImplementedError(
            f"gtopk: {root} has no {os.path.relpath(mine, root)}/{_SHARED_FILE}, but "
            f"{', '.join(there)}: loading an OuterOptimizer on another number of shards is not "
            "implemented. Load it with as many ranks in each replica"
        )
    return mine


def _folders_in(root: str) -> list[str]:
    """Return the folders of a checkpoint: one per shard, or one for a model without shards."""
    every = sorted(folders.flat_folders(root))
    return [each for each in every if os.path.exists(os.path.join(each, _SHARED_FILE))]


def _own_of_others(root: str, rank: int, there: int, here: int) -> dict[str, Any]:
    """Return the sum of the errors of replicas r, r + R', ... of R; zeros if there are none."""
    own = [_get(_file_of(root, i), _REPLICA)["outer"] for i in range(rank, there, here)]
    first = own[0] if own else _get(_file_of(root, 0), _REPLICA)["outer"]
    if first["pending"] is not None:
        raise ValueError(
            f"gtopk: {root} was saved by {there} replicas with an exchange under way, whose result "
            f"is theirs alone, so {here} replicas cannot load it: save after a step without one, "
            "as outer.pending shows"
        )
    errors = first["error"]
    for tensor in [] if own else errors.values():
        tensor.zero_()
    for each in own[1:]:
        for name, tensor in each["error"].items():
            errors[name] += tensor
    return {"pending": None, "error": errors}


def _get(path: str, keys: set[str]) -> dict[str, Any]:
    """Read a file to the CPU."""
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"gtopk: {path} does not exist, or this replica does not see it: load another "
            "checkpoint"
        ) from None
    except Exception as error:
        raise RuntimeError(
            f"gtopk: {path} is damaged or could not be read ({type(error).__name__}: "
            f"{error!s:.300}): load another checkpoint"
        ) from error
    if not isinstance(found, dict) or found.keys() - {"shards"} != keys:
        raise ValueError(f"gtopk: {path} is not a file of gtopk.save, given {found!r:.200}")
    return found


def _take(outer: OuterOptimizer, saved: Mapping[str, Any]) -> None:
    mine = outer.model.state_dict()
    for name in sorted(mine.keys() ^ saved["model"].keys()):
        where = "here, but not saved" if name in mine else "saved, but not here"
        raise ValueError(f"gtopk: the saved model differs from this one: '{name}' is {where}")
    saved["model"].update(from_saved(saved["model"], mine))
    inner = _each_state(outer, saved["inner"], from_saved)
    for name, tensor in saved["model"].items():
        own = mine[name]
        if not isinstance(tensor, torch.Tensor) or not isinstance(own, torch.Tensor):
            continue  # a module's extra state, which the module checks
        if tensor.shape != own.shape:
            raise ValueError(
                f"gtopk: the saved model differs from this one: '{name}' has shape "
                f"{list(tensor.shape)}, but {list(own.shape)} here"
            )
    outer.load_state_dict(inner)
    outer.model.load_state_dict(saved["model"])
    if saved["joins"]:
        shared = outer.shared_parameters()
        with torch.no_grad():
            for name, parameter in outer.model.named_parameters():
                if name in shared:
                    parameter.copy_(shared[name])
