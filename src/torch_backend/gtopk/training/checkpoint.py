"""gtopk.save and gtopk.load: all ranks' states in one folder, by torch.distributed.checkpoint.

Each rank writes its own tensors; what all ranks share is written once, as JSON. If P' ranks load
what P ranks saved, the residuals and momenta of rank r go to rank r mod P'. State saved by other
shards is reassembled and cut again (reshard.py). folders.py decides which version in the folder is
current; the first rank of the first shard asks it on behalf of all.
"""

from __future__ import annotations

import functools
import json
import os
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from gtopk.core.groups import has_ranks_that_change, ranks_of
from gtopk.state.fingerprint import check_alike
from gtopk.state.reshard import cut_anew, told
from gtopk.state.saved import IncompatibleKeys
from gtopk.training import folders, outer_checkpoint
from gtopk.training.outer import OuterOptimizer
from gtopk.training.sparse_state import SparseState
from gtopk.training.versions import Votes, load_version, save_version

if TYPE_CHECKING:
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.metadata import Metadata

_SHARED = "gtopk"
_TENSORS = ("residuals", "momenta")


def save(
    state: SparseState | OuterOptimizer, path: str | os.PathLike[str], *, overwrite: bool = True
) -> None:
    """Write the states of all ranks into the folder `path`; collective over the state's group.

    Saving into a folder again replaces the checkpoint in it only after the new one is complete. If
    a rank is killed or fails before that, the folder still holds the former state; gtopk.load
    always gets one of the two states completely. The next save that succeeds removes the remains of
    interrupted saves. Other files in the folder are kept.

    The states are a checkpoint of ``torch.distributed.checkpoint`` in ``path/version-N``, and the
    file ``path/CURRENT`` names that folder. All ranks must share a file system: the first rank
    checks that it sees what the others have written. Only one job at a time may save into a folder;
    others may load from it meanwhile. Do not call it during a backward.

    For an OuterOptimizer the folder has all that a replica needs to resume, including its model and
    its inner optimizer's state, which differ between replicas. If a replica has several ranks, call
    it on one rank of each replica, all in one group; if they hold shards, call it on all ranks.

    Args:
        state: the state, or an OuterOptimizer. A SparseState's group must be a process group of
            torch.distributed; the members of a ReplicaGroup must have ended an exchange since it
            was configured.
        path: the folder, the same on all ranks; created if it does not exist.
        overwrite: False raises an error if the folder holds a checkpoint.

    Raises:
        ValueError: the ranks' states or paths differ.
        FileExistsError: the folder holds a checkpoint, and overwrite is False.
        FileNotFoundError: a rank does not see the files of another one because they do not share a
            file system.
        NotImplementedError: a SparseState's group is a ReplicaGroup; save each state_dict()
            instead.
        RuntimeError: a file could not be written; another rank failed (the text has its error); or
            members of a ReplicaGroup may have other shared parameters. No rank has saved then.
    """
    path = os.fspath(path)
    if isinstance(state, OuterOptimizer):
        outer_checkpoint.save(state, path, overwrite=overwrite)
        return
    _check_group(state)
    votes = _votes(state)
    votes.all_succeed(lambda: votes.check_path(path))
    _check_states(state)
    write = functools.partial(_write, state, votes)
    save_version(path, votes, write, _is_ours, overwrite=overwrite)


def load(
    state: SparseState | OuterOptimizer, path: str | os.PathLike[str], *, strict: bool = True
) -> IncompatibleKeys:
    """Resume from a gtopk.save; collective over the state's group.

    On the same number of ranks the run continues bit for bit, as with ``state.load_state_dict``;
    `strict`, configuration and errors follow the same rules. If P ranks saved and P' ranks load,
    rank r' takes the sum of the residuals of the saved ranks r', r' + P', ..., added in this order,
    and the sum of their momenta likewise. The sums over all ranks are then the saved ones, up to
    rounding; if there are more ranks than before, the additional ones start with zeros. The
    selector's state and the choices of "auto" and "adaptive" then start afresh.

    Under FSDP each rank takes its shard. If the checkpoint has other shards or none (as under DDP),
    or the model has none, each rank reads all shards and takes its part. In all these cases "ranks"
    above means replicas, and the sums of residuals over the replicas are kept.

    The replicas of an OuterOptimizer load their model and their inner optimizer's state as well. If
    R replicas saved and R' load, errors are distributed like residuals. Replicas from the R-th on
    start with the shared parameters and the inner state of replica r mod R. The movements since the
    last round of replicas that no longer exist are lost.

    Args:
        state: the state to load into; its configuration is unchanged.
        path: the folder that gtopk.save wrote, readable on all ranks.
        strict: see ``state.load_state_dict``; loading an OuterOptimizer is always strict.

    Returns:
        ``(missing_keys, unexpected_keys)``, as ``state.load_state_dict`` returns them.

    Raises:
        ValueError: not a checkpoint of a SparseState, or a checkpoint of other parameters.
        FileNotFoundError: there is no checkpoint, or an unfinished one.
        RuntimeError: a file is damaged or missing, or another rank could not read it (the text has
            its error); no rank has loaded the checkpoint then. Or a rank could not load what it had
            read; only that rank has not loaded it.
    """
    path = os.fspath(path)
    if isinstance(state, OuterOptimizer):
        outer_checkpoint.load(state, path)
        return IncompatibleKeys([], [])
    _check_group(state)
    votes = _votes(state)
    saved = load_version(path, votes, functools.partial(_found, state, strict=strict))
    _check_states(state)
    incompatible = votes.all_succeed(lambda: state.load_state_dict(saved, strict))
    _check_states(state)
    return incompatible


def _check_group(state: SparseState) -> None:
    if not isinstance(state, SparseState):
        raise TypeError(
            f"gtopk: the first argument must be a SparseState, given a {type(state).__name__}"
        )
    if has_ranks_that_change(state.group):
        raise NotImplementedError(
            "gtopk: a ReplicaGroup's ranks cannot have a common checkpoint, as torch's checkpoints "
            "need a process group of torch.distributed: save and load each rank's state_dict()"
        )


def _votes(state: SparseState) -> Votes:
    """Return the votes of all ranks of all shards."""
    where = _place(state)
    groups = [state.group, *state.shard_groups] if dist.is_initialized() else []
    return Votes(groups, first=where["rank"] == where.get("shard", 0) == 0)


def _check_states(state: SparseState) -> None:
    """Raise ValueError on every rank if states differ between replicas. Collective."""
    if dist.is_initialized():
        check_alike(state.description(), state.group)


def _write(state: SparseState, votes: Votes, root: str) -> None:
    """Write this rank's part of a checkpoint. Collective."""
    where, folder = _place(state), folders.folder_of(root, state.shard)
    tensors = votes.all_succeed(lambda: _tensors_of(state, where))
    votes.all_succeed(lambda: _save(state, tensors, folder))
    votes.all_succeed(lambda: _check_seen(root, state, votes) if where["rank"] == 0 else None)


def _save(state: SparseState, tensors: dict[str, torch.Tensor], folder: str) -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        with _quiet():
            dcp.save(
                tensors,
                checkpoint_id=folder,
                process_group=state.group,
                no_dist=not dist.is_initialized(),
            )
    except CheckpointException as error:
        ranks = ranks_of(state.group) if dist.is_initialized() else [0]
        why = _why(error, lambda rank: f"rank {ranks[rank]}: ")
        raise RuntimeError(f"gtopk: {folder} could not be written: {why}") from error


def _check_seen(root: str, state: SparseState, votes: Votes) -> None:
    """Raise an error if files of this rank's shard, or other shards' checkpoints, are missing."""
    folder = folders.folder_of(root, state.shard)
    lost = _lost(folder)
    if not lost and votes.first and state.shard is not None:
        every = [folders.folder_of(root, (i, state.shard[1])) for i in range(state.shard[1])]
        lost = [each for each in every if not folders.is_checkpoint(each)]
    if lost:
        raise FileNotFoundError(
            f"gtopk: rank {dist.get_rank()} does not see {lost[0]}, which another rank has "
            "written: gtopk.save needs a file system that all ranks share. Without one, save each "
            "rank's state_dict()"
        )


def _lost(folder: str) -> list[str]:
    """Return the paths of a checkpoint's files that are missing."""
    files = {each.relative_path for each in _metadata(folder).storage_data.values()}
    paths = [os.path.join(folder, each) for each in sorted(files)]
    return [each for each in paths if not os.path.exists(each)]


def _is_ours(folder: str) -> bool:
    """Return whether gtopk.save wrote the checkpoint in a folder; False if it cannot be read."""
    try:
        return _SHARED in _metadata(folder).state_dict_metadata
    except Exception:
        return False


def _tensors_of(state: SparseState, where: Mapping[str, int]) -> dict[str, torch.Tensor]:
    """Return the tensors that this rank writes, by their keys in the checkpoint."""
    saved = state.state_dict()
    mine = {
        _key(where["rank"], kind, name): tensor
        for kind in _TENSORS
        for name, tensor in saved.pop(kind).items()
    }
    selector = saved.pop("selector")
    for i, kept in enumerate(selector["states"]):
        mine[_key(where["rank"], "selector", str(i))] = kept
    del saved["place"]
    shared = {**saved, "ranks": where["ranks"], "select": selector["select"]}
    if state.cuts is not None:
        shared["cuts"] = told(state.cuts)
    mine[_SHARED] = torch.frombuffer(bytearray(json.dumps(shared).encode()), dtype=torch.uint8)
    return mine


def _found(state: SparseState, root: str, *, strict: bool) -> dict[str, Any]:
    """Return what state_dict() would return on this rank, from its own shard or from others."""
    if outer_checkpoint.is_in(root):
        raise ValueError(
            f"gtopk: {root} is an OuterOptimizer's checkpoint: pass gtopk.load the OuterOptimizer, "
            "not a SparseState"
        )
    folder, known, where = folders.folder_of(root, state.shard), state.place(), _place(state)
    others = [] if folders.is_checkpoint(folder) else folders.shards_in(root)
    if not others:
        return _read(folder, known, where)
    if state.shard is not None and state.cuts is None:
        raise NotImplementedError(
            f"gtopk: {root} was saved by other shards, and parameters that are sharded in more "
            "than one dimension cannot be cut for different shards"
        )

    def read(each: str) -> dict[str, Any]:
        return _read(each, known, where)

    return cut_anew(others, read, state.units, state.cuts, strict=strict)


def _place(state: SparseState) -> Mapping[str, int]:
    return state.place() or {"rank": 0, "ranks": 1}


def _read(
    path: str | os.PathLike[str], known: Mapping[str, int] | None, where: Mapping[str, int]
) -> dict[str, Any]:
    """Return what state_dict() would return on this rank. known: its "place"."""
    metadata = _metadata(path)
    shared = _read_shared(path, metadata)
    ranks = shared.pop("ranks")
    select = shared.pop("select")
    saved = {**shared, "place": known, **{kind: {} for kind in _TENSORS}}
    for rank in range(where["rank"], ranks, where["ranks"]):
        for kind in _TENSORS:
            _add(saved[kind], _tensors(path, metadata, rank, kind))
    if ranks == where["ranks"]:
        kept = _tensors(path, metadata, where["rank"], "selector")
        saved["selector"] = {"select": select, "states": [kept[i] for i in sorted(kept, key=int)]}
        return saved
    del saved["auto"]
    saved.pop("adaptive", None)
    if where["rank"] >= ranks:  # this rank takes over no saved rank
        for kind in _TENSORS:
            saved[kind] = _tensors(path, metadata, 0, kind)
            for tensor in saved[kind].values():
                tensor.zero_()
    return saved


def _add(sums: dict[str, torch.Tensor], tensors: Mapping[str, torch.Tensor]) -> None:
    for name, tensor in tensors.items():
        if name in sums:
            sums[name].add_(tensor)
        else:
            sums[name] = tensor


def _metadata(path: str | os.PathLike[str]) -> Metadata:
    from torch.distributed.checkpoint import FileSystemReader

    if not folders.is_checkpoint(os.fspath(path)):
        raise FileNotFoundError(
            f"gtopk: {path} holds no complete checkpoint: there is no .metadata in it. Not all of "
            "it was copied, or this rank does not see it: load another checkpoint"
        )
    return FileSystemReader(path).read_metadata()


def _read_shared(path: str | os.PathLike[str], metadata: Metadata) -> dict[str, Any]:
    found = _load(path, metadata, [_SHARED])
    if not found:
        raise ValueError(f"gtopk: {path} is not a checkpoint of gtopk.save: it has no '{_SHARED}'")
    shared = json.loads(bytes(found[_SHARED].tolist()))
    if not isinstance(shared, dict) or not {"ranks", "select"} <= shared.keys():
        raise ValueError(f"gtopk: {path} is not a checkpoint of gtopk.save, given {shared!r:.200}")
    return shared


def _tensors(
    path: str | os.PathLike[str], metadata: Metadata, rank: int, kind: str
) -> dict[str, torch.Tensor]:
    """Return a saved rank's tensors, by the names under which they were saved."""
    begin = _key(rank, kind, "")
    names = [key for key in metadata.state_dict_metadata if key.startswith(begin)]
    return {key[len(begin) :]: each for key, each in _load(path, metadata, names).items()}


def _load(
    path: str | os.PathLike[str], metadata: Metadata, keys: list[str]
) -> dict[str, torch.Tensor]:
    """Read the tensors among these that exist. Local, because each rank reads other tensors."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    there = {key: metadata.state_dict_metadata.get(key) for key in keys}
    tensors = {
        key: torch.empty(each.size, dtype=each.properties.dtype, device="cpu")
        for key, each in there.items()
        if isinstance(each, TensorStorageMetadata)
    }
    if tensors:
        try:
            with _quiet():
                dcp.load(tensors, checkpoint_id=path, no_dist=True)
        except CheckpointException as error:
            lost = _lost(os.fspath(path))
            what = "is damaged or could not be read"
            if lost:
                what = f"is not complete: files are missing ({len(lost)}), such as {lost[0]}"
            why = _why(error, lambda _: "")
            raise RuntimeError(f"gtopk: {path} {what} ({why}): load another checkpoint") from error
    return tensors


def _why(error: CheckpointException, whose: Callable[[int], str]) -> str:
    """Return the errors by rank. CheckpointException is no Exception, and its text is longer."""
    # str() names a file, but repr() does not.
    return "; ".join(
        f"{whose(rank)}{type(each).__name__}: {each}" for rank, (each, _) in error.failures.items()
    )


def _key(rank: int, kind: str, name: str) -> str:
    return f"{rank}/{kind}/{name}"


class _quiet(warnings.catch_warnings):  # noqa: N801  # a context manager, read as a verb
    """Silence DCP's warnings about working in a single process, which is intended."""

    def __enter__(self) -> None:
        super().__enter__()
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
