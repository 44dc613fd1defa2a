"""What a saved state says about where it belongs: units as plain values, rank and ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gtopk.units import Unit


def layout(units: Sequence[Unit]) -> list[dict[str, Any]]:
    """Units as plain values, to be saved and compared."""
    return [
        {
            "dtype": str(unit.dtype),
            "large": [[each.name, list(each.shape)] for each in unit.large],
            "small": [[each.name, list(each.shape)] for each in unit.small],
        }
        for unit in units
    ]


def check_units(mine: Sequence[Unit], saved: Sequence[Mapping[str, Any]], whose: str) -> None:
    """Raise ValueError that shows the first unit in which `saved`, a layout(), differs."""
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


def place(group: dist.ProcessGroup | None) -> dict[str, int] | None:
    """Rank and ranks, where they are known."""
    if not dist.is_available() or not dist.is_initialized():
        return None
    return {"rank": dist.get_rank(group), "ranks": dist.get_world_size(group)}


def check_place(saved: Mapping[str, int] | None, mine: Mapping[str, int] | None) -> None:
    """Raise ValueError for another rank's state, NotImplementedError for other ranks' number."""
    if saved is None or mine is None or saved == mine:
        return
    if saved["ranks"] != mine["ranks"]:
        raise NotImplementedError(
            f"gtopk: the saved state is that of one of {saved['ranks']} ranks, this run has "
            f"{mine['ranks']}: redistributing residuals over other ranks is not there yet"
        )
    raise ValueError(
        f"gtopk: the saved state is that of rank {saved['rank']}, this is rank {mine['rank']}: "
        "every rank loads its own"
    )
