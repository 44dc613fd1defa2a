"""How FSDP2 cuts parameters into shards, and how saved shards are cut again for this one.

The saved state of an unsharded model is cut likewise. This module uses no ranks and no files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gtopk.ops.sparse_all_reduce import ACCUMULATION
from gtopk.state.saved import layout

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gtopk.state.units import Unit

_KINDS = ("residuals", "momenta")


@dataclass(frozen=True)
class Cut:
    """One shard of a parameter: consecutive rows of dimension `dim`; the last may be shorter.

    In a unit the shard is flat and padded with zeros to the size of the first shard, the largest.
    """

    shape: tuple[int, ...]
    """The shape of the whole parameter."""
    dim: int
    number: int
    shards: int

    def piece(self, whole: torch.Tensor) -> torch.Tensor:
        """Return this shard of `whole`, flat and padded."""
        rows, begin, end = self._rows(self.number)
        mine = whole.narrow(self.dim, begin, end - begin).flatten()
        size = rows * (whole.numel() // max(1, self.shape[self.dim]))
        padded = torch.zeros(size, dtype=whole.dtype, device=whole.device)
        padded[: mine.numel()] = mine
        return padded

    def whole(self, pieces: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the parameter whose shards these are, each flat and padded."""
        parts = []
        for number, each in enumerate(pieces):
            _, begin, end = self._rows(number)
            shape = [*self.shape]
            shape[self.dim] = end - begin
            numel = torch.Size(shape).numel()
            parts.append(each.flatten()[:numel].view(shape))
        return torch.cat(parts, self.dim)

    def _rows(self, number: int) -> tuple[int, int, int]:
        """Return the rows of the largest shard, and where this shard begins and ends."""
        rows = self.shape[self.dim]
        most = -(-rows // self.shards)
        return most, min(number * most, rows), min((number + 1) * most, rows)


class Known(NamedTuple):
    """What is saved of one parameter, however it is sharded."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    """The type of its residual."""
    large: bool
    """Whether it has a residual."""


def cut_anew(
    folders: Sequence[str],
    read: Callable[[str], dict[str, Any]],
    units: Sequence[Unit],
    cuts: Mapping[str, Cut] | None,
    *,
    strict: bool,
) -> dict[str, Any]:
    """Return what state_dict() would return on this rank.

    read: returns the state_dict() in a folder, from the replicas that this rank takes over. cuts:
    the cuts of this rank's parameters; None without shards. Raise ValueError naming the first
    parameter that does not fit; with strict=False, parameters that do not fit are left out.
    """
    saved = [read(each) for each in folders]
    here, there = _known(layout(units), told(cuts)), _known(saved[0]["units"], saved[0].get("cuts"))
    if strict:
        _check(here, there)
    made = {**saved[0], "units": layout(units), **{kind: {} for kind in _KINDS}}
    for key in ("selector", "auto", "adaptive"):  # these belong to other units
        made.pop(key, None)
    for name, mine in here.items():
        theirs = there.get(name)
        if theirs is None or theirs[:2] != mine[:2]:
            continue
        cut = None if cuts is None else cuts[name]
        for kind in _KINDS:
            if kind == "residuals" and not mine.large:
                continue
            pieces = [each[kind][name] for each in saved if name in each[kind]]
            if pieces and "cuts" in saved[0]:
                dim = saved[0]["cuts"][name][1]
                whole = Cut(mine.shape, dim, 0, len(saved)).whole(pieces)
            elif pieces:
                whole = pieces[0]
            elif kind == "residuals":  # it was too small for a residual when saved
                whole = torch.zeros(mine.shape, dtype=mine.dtype, device="cpu")
            else:
                continue
            made[kind][name] = whole if cut is None else cut.piece(whole)
    return made


def told(cuts: Mapping[str, Cut] | None) -> dict[str, list[Any]] | None:
    """Return cuts as plain values: each parameter's shape, and which dimension is cut."""
    if cuts is None:
        return None
    return {name: [list(each.shape), each.dim] for name, each in cuts.items()}


def _known(
    units: Sequence[Mapping[str, Any]], cuts: Mapping[str, Sequence[Any]] | None
) -> dict[str, Known]:
    """Return what is saved of each parameter, from a layout() and a result of told()."""
    found = {}
    for unit in units:
        dtype = ACCUMULATION[getattr(torch, unit["dtype"].removeprefix("torch."))]
        for kind in ("large", "small"):
            for name, shape in unit[kind]:
                whole = tuple(shape if cuts is None else cuts[name][0])
                found[name] = Known(whole, dtype, kind == "large")
    return found


def _check(here: Mapping[str, Known], there: Mapping[str, Known]) -> None:
    for name in [*here, *there]:
        mine, theirs = here.get(name), there.get(name)
        if mine is None or theirs is None or mine[:2] != theirs[:2]:
            raise ValueError(
                f"gtopk: the saved state is for other parameters: '{name}' is {_said(mine)} here "
                f"and {_said(theirs)} in the saved state; strict=False loads what fits"
            )
        if theirs.large and not mine.large:
            raise ValueError(
                f"gtopk: '{name}' has a residual in the saved state, but is too small for one in "
                "these shards: set min_numel= to at most the number of its elements in a shard, or "
                "drop the residual with strict=False"
            )


def _said(known: Known | None) -> str:
    return "absent" if known is None else f"{list(known.shape)} with residuals in {known.dtype}"
