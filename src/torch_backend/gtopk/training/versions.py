"""Agreement of ranks that save or load together, and their choice of the current version."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch.distributed as dist

from gtopk.core.groups import number_in
from gtopk.state.fingerprint import check_alike, check_nobody_failed, gathered_texts
from gtopk.training import folders

T = TypeVar("T")


class Votes:
    """Agreement of the ranks that these groups connect; without groups, of only this process.

    Every method is collective.
    """

    def __init__(self, groups: Sequence[dist.ProcessGroup | None], *, first: bool) -> None:
        """Use these groups. first: whether this is the one rank that decides for all."""
        self._groups = groups
        self.first = first

    def check_path(self, path: str) -> None:
        """Raise ValueError if the ranks were given different paths."""
        failure = None
        for group in self._groups:
            said = (
                f"save() got a different path on rank {number_in(group)} than on other ranks",
                "Give all ranks the same path, on a file system that they share",
            )
            try:
                check_alike([("it is", repr(os.path.abspath(path)))], group, said)
            except ValueError as error:
                failure = error
        if failure is not None:
            raise failure

    def all_succeed(self, do: Callable[[], T]) -> T:
        """Call `do`; if it fails, raise its error there, and elsewhere one that names it."""
        failure: Exception | None = None
        try:
            done = do()
        except Exception as error:
            failure = error
        for group in self._groups:
            try:
                check_nobody_failed(failure, group)
            except Exception as error:
                failure = error
        if failure is not None:
            raise failure
        return done

    def first_succeeds(self, do: Callable[[], object]) -> None:
        """Call `do` on the first rank; raise on every rank if it failed."""
        self.all_succeed(lambda: do() if self.first else None)

    def from_first(self, do: Callable[[], str]) -> str:
        """Call `do` on the first rank; return its result on every rank."""
        text = self.all_succeed(do if self.first else str)
        for group in self._groups:
            texts = (each.decode().strip() for each in gathered_texts(text.encode(), group))
            text = next(filter(None, texts), "")
        return text


def save_version(
    path: str,
    votes: Votes,
    write: Callable[[str], None],
    is_ours: Callable[[str], bool],
    *,
    overwrite: bool,
) -> None:
    """Write a new version and make it current, or leave the folder unchanged; collective.

    write: writes this rank's part into the given folder of the version; collective. is_ours,
    overwrite: see folders.remove_others and folders.begin.
    """
    version = votes.from_first(lambda: folders.begin(path, overwrite=overwrite))
    try:
        write(os.path.join(path, version))
        votes.first_succeeds(lambda: folders.commit(path, version))
    except BaseException:
        if votes.first:
            folders.discard(path, version)
        raise
    if votes.first:
        folders.remove_others(path, version, is_ours)


def load_version(path: str, votes: Votes, read: Callable[[str], T]) -> T:
    """Return the result of `read` on this rank, given the current version's folder; collective."""
    version: str | None = None
    failure: Exception | None = None
    while True:
        before, version = version, votes.from_first(lambda: folders.current(path))
        if failure is not None and version == before:
            raise failure
        try:
            return votes.all_succeed(functools.partial(read, os.path.join(path, version)))
        except Exception as error:  # Another job's save may have replaced what was being read.
            failure = error
