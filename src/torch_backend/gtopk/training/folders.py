"""The folder of gtopk.save: its versions, and which of them is current.

Each save writes a folder version-N beside the previous version. Renaming a file CURRENT, which
contains the name, over the old one makes the new version current, so a reader sees either the old
state or the new one, completely. The old version is removed last, together with the remains of
interrupted saves. Earlier versions of gtopk wrote straight into the folder; that checkpoint is
current if there is no CURRENT.

This module deals with files and their names, but not with the contents of a checkpoint.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import warnings
from collections.abc import Callable

CURRENT = "CURRENT"
_NEXT = CURRENT + ".next"
_VERSION = re.compile(r"version-([1-9]\d*)")
_SHARD = re.compile(r"shard-\d+-of-([1-9]\d*)")
_DATA = re.compile(r"__\d+_\d+\.distcp")


def folder_of(path: str, shard: tuple[int, int] | None) -> str:
    """Return the folder of a shard's checkpoint, or of a model without shards."""
    return path if shard is None else os.path.join(path, f"shard-{shard[0]}-of-{shard[1]}")


def is_checkpoint(folder: str) -> bool:
    """Return whether the folder has a complete checkpoint of one shard or an unsharded model."""
    return os.path.exists(os.path.join(folder, ".metadata"))


def shards_in(path: str) -> list[str]:
    """Return the folders of one checkpoint of a whole model, by shard; empty if there is none.

    Raises FileNotFoundError if a shard's checkpoint is missing or unfinished.
    """
    if is_checkpoint(path):
        return [path]
    counts = sorted({int(found[1]) for name in _names(path) if (found := _SHARD.fullmatch(name))})
    if not counts:
        return []
    if len(counts) > 1:
        raise FileNotFoundError(
            f"gtopk: {path} must hold one checkpoint, but holds those of "
            f"{' and of '.join(map(str, counts))} shards: move the others away"
        )
    folders = [folder_of(path, (i, counts[0])) for i in range(counts[0])]
    missing = [os.path.basename(each) for each in folders if not is_checkpoint(each)]
    if missing:
        raise FileNotFoundError(
            f"gtopk: {path} is not complete: there is no .metadata in {', '.join(missing)}. The "
            "save was interrupted, or not all of it was copied: load another checkpoint"
        )
    return folders


def flat_folders(path: str) -> list[str]:
    """Return the folder and the folders of shards in it."""
    return [path, *(os.path.join(path, each) for each in filter(_SHARD.fullmatch, _names(path)))]


def begin(path: str, *, overwrite: bool) -> str:
    """Make the folder of a new version in `path`; return its name.

    Raises FileExistsError if there is a checkpoint and overwrite is False.
    """
    os.makedirs(path, exist_ok=True)
    if not overwrite and (
        os.path.exists(os.path.join(path, CURRENT))
        or any(is_checkpoint(each) for each in flat_folders(path))
    ):
        raise FileExistsError(
            f"gtopk: {path} already holds a checkpoint: save into another folder, or with "
            "overwrite=True, which replaces it"
        )
    number = max(_versions(path), default=0) + 1
    name = f"version-{number}"
    os.mkdir(os.path.join(path, name))
    return name


def commit(path: str, version: str) -> None:
    """Make the version current once its folders are on disk; DCP has synchronised its files."""
    folder = os.path.join(path, version)
    for each in flat_folders(folder):
        _synchronise(each)
    following = os.path.join(path, _NEXT)
    with open(following, "w", encoding="ascii") as file:
        file.write(version + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(following, os.path.join(path, CURRENT))
    _synchronise(path)


def discard(path: str, version: str) -> None:
    """Remove a version that could not be written, unless it is current nevertheless."""
    with contextlib.suppress(OSError, ValueError):
        if _named(path) != version:
            shutil.rmtree(os.path.join(path, version), ignore_errors=True)


def remove_others(path: str, version: str, is_ours: Callable[[str], bool]) -> None:
    """Remove all other versions, and files that earlier versions of gtopk wrote into the folder.

    is_ours: returns whether gtopk.save wrote the checkpoint in a folder. All other files stay.
    Warns about files that cannot be removed.
    """
    others = [os.path.join(path, f"version-{number}") for number in _versions(path)]
    others.remove(os.path.join(path, version))
    for folder in others:
        shutil.rmtree(folder, ignore_errors=True)
    for folder in reversed(flat_folders(path)):
        if is_checkpoint(folder) and is_ours(folder):
            # Remove .metadata last: without it, the next save could not tell who wrote the other
            # files.
            for name in (*filter(_DATA.fullmatch, _names(folder)), ".metadata"):
                with contextlib.suppress(OSError):
                    os.remove(os.path.join(folder, name))
            if folder == path:
                others.append(os.path.join(folder, ".metadata"))
            else:
                others.append(folder)
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
    left = [each for each in others if os.path.exists(each)]
    if left:
        # If warnings are errors, stay silent because the checkpoint is complete, and only this rank
        # warns.
        with contextlib.suppress(Warning):
            warnings.warn(
                f"gtopk: earlier saves could not be removed: {', '.join(left)}",
                stacklevel=3,
            )


def current(path: str) -> str:
    """Return the name of the current version; "" for a checkpoint in `path` itself.

    Raises FileNotFoundError, saying what is missing; ValueError if CURRENT names no version.
    """
    name = _named(path)
    if name and not os.path.isdir(os.path.join(path, name)):
        raise FileNotFoundError(
            f"gtopk: {os.path.join(path, CURRENT)} names {name}, which does not exist: copy "
            "the whole folder, or load another checkpoint"
        )
    if name or shards_in(path):
        return name
    if not os.path.isdir(path):
        raise FileNotFoundError(f"gtopk: {path} holds no checkpoint: there is no such folder")
    unfinished = [f"version-{number}" for number in sorted(_versions(path))]
    missing = CURRENT if unfinished else ".metadata"
    unfinished += sorted(filter(_DATA.fullmatch, _names(path)))
    if not unfinished:
        raise FileNotFoundError(
            f"gtopk: {path} holds no checkpoint: neither {CURRENT} nor .metadata is there"
        )
    raise FileNotFoundError(
        f"gtopk: {path} holds no checkpoint, as no save into it was finished: {missing}, which is "
        f"written last, is missing beside {', '.join(unfinished)}. Load another checkpoint; the "
        "next gtopk.save into this folder replaces what is there"
    )


def _named(path: str) -> str:
    """Return the content of CURRENT; "" if the file does not exist."""
    try:
        with open(os.path.join(path, CURRENT), encoding="ascii", errors="replace") as file:
            name = file.read().strip()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    if not _VERSION.fullmatch(name):
        raise ValueError(
            f"gtopk: {os.path.join(path, CURRENT)} must name a version, such as version-1, but "
            f"contains {name!r:.100}: replace this with the name of the version to load"
        )
    return name


def _versions(path: str) -> list[int]:
    return [int(found[1]) for name in _names(path) if (found := _VERSION.fullmatch(name))]


def _names(path: str) -> list[str]:
    return os.listdir(path) if os.path.isdir(path) else []


def _synchronise(folder: str) -> None:
    """Wait until the names of a folder's files are on disk, if the file system supports it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
