"""gtopk.save and gtopk.load: all ranks' states in one folder, by torch.distributed.checkpoint.

Each rank writes its own tensors; what all ranks share is written once, as JSON. If P' ranks load
what P ranks saved, the residuals and momenta of rank r go to rank r mod P'. What other shards saved
is reassembled and cut again (recut.py).
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from gtopk.checkpoint import IncompatibleKeys
from gtopk.fingerprint import check_alike, check_nobody_failed
from gtopk.groups import has_ranks_that_change
from gtopk.recut import cut_anew, folder_of, in_the_way, is_checkpoint, others_in, told
from gtopk.state import SparseState

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import Metadata

_SHARED = "gtopk"
_TENSORS = ("residuals", "momenta")


def save(state: SparseState, path: str | os.PathLike[str]) -> None:
    """Write the states of all ranks into the folder `path`; collective over the state's group.

    A checkpoint of ``torch.distributed.checkpoint``: a rank killed while writing leaves a folder
    without ``.metadata``, which is written last, and gtopk.load refuses it. Use a new folder for
    each step. All ranks must share a file system: rank 0 checks that it sees what the others have
    written. Do not call it during a backward.

    Args:
        state: the state; its group must be a process group of torch.distributed.
        path: the folder, the same on all ranks.

    Raises:
        ValueError: the ranks' states or paths differ, or the folder already holds a checkpoint.
        FileNotFoundError: the first rank does not see the files of another one, which does not
            share its file system; RuntimeError on the other ranks. The folder is then left without
            ``.metadata``.
        NotImplementedError: the state's group is a ReplicaGroup; save each state_dict() instead.
        torch.distributed.checkpoint.CheckpointException: it could not be written.
    """
    import torch.distributed.checkpoint as dcp

    _check_group(state)
    group, where = state.group, _place(state)
    failure = _other_path(os.fspath(path), state)
    old = in_the_way(os.fspath(path), state.shard)
    path = folder_of(os.fspath(path), state.shard)
    if old is not None and failure is None:
        failure = ValueError(f"gtopk: {old} holds a checkpoint already: give each one a folder")
    _agree(failure, state)
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
    with _quiet():
        dcp.save(mine, checkpoint_id=path, process_group=group, no_dist=not dist.is_initialized())
    _agree(_unseen(path) if where["rank"] == 0 else None, state)


def load(
    state: SparseState, path: str | os.PathLike[str], *, strict: bool = True
) -> IncompatibleKeys:
    """Resume from a gtopk.save; collective over the state's group.

    On the same number of ranks the run continues bit for bit, as with ``state.load_state_dict``;
    `strict`, configuration and errors follow the same rules. If P ranks saved and P' ranks load,
    rank r' takes the sum of the residuals of the saved ranks r', r' + P', ..., added in this order,
    and likewise of their momenta. The sums over all ranks are then those that were saved, up to
    rounding; if there are more ranks than before, the additional ones start with zeros. The
    selector's state and the choices of "auto" and "adaptive" then start afresh.

    Under FSDP each rank takes its shard. If the checkpoint has other shards or none (as under DDP),
    or the model has none, a rank reads all shards and takes its part. In all these cases "ranks"
    above means replicas, and the sums of residuals over the replicas are kept.

    Args:
        state: the state to load into; its configuration stays as it is.
        path: the folder that gtopk.save wrote, readable on all ranks.
        strict: see ``state.load_state_dict``.

    Returns:
        ``(missing_keys, unexpected_keys)``, as ``state.load_state_dict``.

    Raises:
        ValueError: not a checkpoint of a SparseState, or one of other parameters.
        FileNotFoundError: there is no checkpoint, or an unfinished one.
        RuntimeError: a file of it is damaged or missing, or another rank could not read it, whose
            error is named: then no rank has loaded it. Or another rank alone could not load what it
            had read.
    """
    _check_group(state)
    failure, saved = None, {}
    try:
        saved = _found(state, os.fspath(path), strict=strict)
    except Exception as error:
        failure = error
    _agree(failure, state)
    incompatible = IncompatibleKeys([], [])
    try:
        incompatible = state.load_state_dict(saved, strict)
    except Exception as error:
        failure = error
    _agree(failure, state)
    return incompatible


def _check_group(state: SparseState) -> None:
    if not isinstance(state, SparseState):
        raise TypeError(
            f"gtopk: the first argument must be a SparseState, given a {type(state).__name__}"
        )
    if has_ranks_that_change(state.group):
        raise NotImplementedError(
            "gtopk: a ReplicaGroup's ranks save no common checkpoint, as torch's needs a process "
            "group of torch.distributed: save each rank's state_dict()"
        )


def _other_path(path: str, state: SparseState) -> Exception | None:
    """Return an error if ranks, also of other shards, were given other paths. Collective."""
    failure = None
    for group in (state.group, *state.shard_groups) if dist.is_initialized() else ():
        said = (
            f"gtopk.save got another path on rank {dist.get_rank()} than on other ranks",
            "Give all ranks one path, on a file system that they share",
        )
        try:
            check_alike([("it is", repr(os.path.abspath(path)))], group, said)
        except ValueError as error:
            failure = error
    return failure


def _unseen(path: str) -> Exception | None:
    """Return an error if files of the checkpoint are not there, which is then no longer one."""
    files = {each.relative_path for each in _metadata(path).storage_data.values()}
    lost = sorted(each for each in files if not os.path.exists(os.path.join(path, each)))
    if not lost:
        return None
    os.remove(os.path.join(path, ".metadata"))
    return FileNotFoundError(
        f"gtopk: the first rank does not see {os.path.join(path, lost[0])}, which another rank has "
        "written: gtopk.save needs a file system that all ranks share. Without one, save each "
        "rank's state_dict()"
    )


def _agree(failure: Exception | None, state: SparseState) -> None:
    """Raise on every rank, also of other shards, if a rank has failed or states differ."""
    if dist.is_initialized():
        for group in (state.group, *state.shard_groups):
            try:
                check_nobody_failed(failure, group)
            except Exception as error:
                failure = error
    if failure is not None:
        raise failure
    if dist.is_initialized():
        check_alike(state.description(), state.group)


def _found(state: SparseState, path: str, *, strict: bool) -> dict[str, Any]:
    """Return what a state_dict() of this rank would be: of its own shard, or of others'."""
    folder, known, where = folder_of(path, state.shard), state.place(), _place(state)
    others = [] if is_checkpoint(folder) else others_in(path)
    if not others:
        return _read(folder, known, where)
    if state.shard is not None and state.cuts is None:
        raise NotImplementedError(
            f"gtopk: {path} holds what other shards saved, and parameters that are sharded in more "
            "than one dimension cannot be cut for other shards"
        )

    def read(each: str) -> dict[str, Any]:
        return _read(each, known, where)

    return cut_anew(others, read, state.units, state.cuts, strict=strict)


def _place(state: SparseState) -> Mapping[str, int]:
    return state.place() or {"rank": 0, "ranks": 1}


def _read(
    path: str | os.PathLike[str], known: Mapping[str, int] | None, where: Mapping[str, int]
) -> dict[str, Any]:
    """Return what a state_dict() of this rank would be; known: its "place"."""
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
    if where["rank"] >= ranks:  # this one has none of theirs
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

    if not is_checkpoint(os.fspath(path)):
        raise FileNotFoundError(
            f"gtopk: {path} holds no checkpoint, or one that was not finished: there is no "
            ".metadata in it, which is written last"
        )
    return FileSystemReader(path).read_metadata()


def _read_shared(path: str | os.PathLike[str], metadata: Metadata) -> dict[str, Any]:
    found = _load(path, metadata, [_SHARED])
    if not found:
        raise ValueError(f"gtopk: {path} is no checkpoint of gtopk.save: it has no '{_SHARED}'")
    shared = json.loads(bytes(found[_SHARED].tolist()))
    if not isinstance(shared, dict) or not {"ranks", "select"} <= shared.keys():
        raise ValueError(f"gtopk: {path} is no checkpoint of gtopk.save, given {shared!r:.200}")
    return shared


def _tensors(
    path: str | os.PathLike[str], metadata: Metadata, rank: int, kind: str
) -> dict[str, torch.Tensor]:
    """Return a saved rank's tensors, by the names they had there."""
    begin = _key(rank, kind, "")
    names = [key for key in metadata.state_dict_metadata if key.startswith(begin)]
    return {key[len(begin) :]: each for key, each in _load(path, metadata, names).items()}


def _load(
    path: str | os.PathLike[str], metadata: Metadata, keys: list[str]
) -> dict[str, torch.Tensor]:
    """Read those of these tensors that exist. Local, as other ranks read other tensors."""
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
        except CheckpointException as error:  # no Exception: nobody would tell the other ranks
            # str() names the file, repr() does not.
            why = "; ".join(f"{type(e).__name__}: {e}" for e, _ in error.failures.values())
            raise RuntimeError(f"gtopk: {path} is damaged or could not be read: {why}") from error
    return tensors


def _key(rank: int, kind: str, name: str) -> str:
    return f"{rank}/{kind}/{name}"


class _quiet(warnings.catch_warnings):  # noqa: N801  # a context manager, read as a verb
    """Silence DCP's warnings that it works on a single process: that is intended."""

    def __enter__(self) -> None:
        super().__enter__()
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
