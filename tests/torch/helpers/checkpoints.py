"""A folder that the ranks of a check share."""

from __future__ import annotations

import pathlib
import tempfile

import torch.distributed as dist

from helpers.ranks import Rank


def shared_folder(me: Rank) -> tempfile.TemporaryDirectory | pathlib.Path:
    """One folder for all ranks, which the first one removes when it releases the object."""
    made = tempfile.TemporaryDirectory() if me.rank == 0 else None
    name = [made.name if made else None]
    dist.broadcast_object_list(name)
    return made or pathlib.Path(name[0])


def path_of(folder: tempfile.TemporaryDirectory | pathlib.Path) -> pathlib.Path:
    return pathlib.Path(
        getattr(folder, "name", "") if not isinstance(folder, pathlib.Path) else folder
    )
