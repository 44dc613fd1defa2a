"""Errors injected into the steps of a save."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator
from typing import NamedTuple
from unittest import mock

from helpers.ranks import Rank


class Step(NamedTuple):
    """A function that a save calls on one rank, where the rank fails: before or after it."""

    owner: object
    name: str
    rank: int
    after: bool = False
    new: bool = False
    """Whether the new state counts by then."""
    only: str = ""
    """The end of a path among the arguments; other calls pass."""


class InjectedError(OSError):
    """A file system's error."""


@contextlib.contextmanager
def failing(step: Step, me: Rank, fail: Callable[[], None]) -> Iterator[None]:
    function = getattr(step.owner, step.name)

    def called(*arguments, **named):
        met = str(arguments[-1] if arguments else "").endswith(step.only)
        if met and not step.after:
            if function is shutil.rmtree:  # half of it is gone
                os.remove(next(each for each in pathlib.Path(arguments[0]).rglob("*.distcp")))
            fail()
        done = function(*arguments, **named)
        if met and step.after:
            fail()
        return done

    with (
        mock.patch.object(step.owner, step.name, called)
        if me.rank == step.rank
        else (contextlib.nullcontext())
    ):
        yield


def raise_error() -> None:
    raise InjectedError("no space left")
