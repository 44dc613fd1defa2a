"""Residuals of one rank: what was not delivered yet, by unit and parameter. Knows no exchange."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gtopk.collectives import ACCUMULATION

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gtopk.units import Parameter, Unit


class Residuals:
    """One flat tensor per unit, zeros when it is first asked for, and views by parameter."""

    def __init__(self, units: Sequence[Unit]) -> None:
        """Take no memory yet."""
        self._units = units
        self._flat: list[torch.Tensor | None] = [None] * len(units)
        self._small = {each.name for unit in units for each in unit.small}
        self._unit_of = {each.name: i for i, unit in enumerate(units) for each in unit.large}

    def of_unit(self, index: int) -> torch.Tensor:
        """Return the flat residual of a unit, zeros at first."""
        flat = self._flat[index]
        if flat is None:
            unit = self._units[index]
            flat = torch.zeros(unit.selected_numel, dtype=ACCUMULATION[unit.dtype], device="cpu")
            self._flat[index] = flat
        return flat

    def of_parameter(self, name: str) -> torch.Tensor | None:
        """Return a view in the parameter's shape; None for a small one; KeyError if unknown."""
        if name in self._small:
            return None
        if name not in self._unit_of:
            raise KeyError(f"gtopk: no parameter '{name}' in this SparseState")
        index = self._unit_of[name]
        large = self._units[index].large
        at = next(i for i, each in enumerate(large) if each.name == name)
        return slots(self.of_unit(index), large)[at]

    def by_parameter(self) -> dict[str, torch.Tensor]:
        """Return a view for each large parameter."""
        residuals: dict[str, torch.Tensor] = {}
        for index, unit in enumerate(self._units):
            views = slots(self.of_unit(index), unit.large)
            residuals.update(zip((each.name for each in unit.large), views, strict=True))
        return residuals

    def load(self, saved: Mapping[str, torch.Tensor]) -> None:
        """Copy all in, or raise ValueError where names, shapes or types differ and copy none."""
        mine = self.by_parameter()
        if mine.keys() != saved.keys():
            raise ValueError(
                "gtopk: the saved residuals are those of other parameters: "
                f"{sorted(mine.keys() ^ saved.keys())} are on one side alone"
            )
        for name, view in mine.items():
            if saved[name].shape != view.shape or saved[name].dtype != view.dtype:
                raise ValueError(
                    f"gtopk: the residual of '{name}' is {view.dtype} {tuple(view.shape)} here, "
                    f"{saved[name].dtype} {tuple(saved[name].shape)} in the saved state"
                )
        for name, view in mine.items():
            view.copy_(saved[name])


def slots(flat: torch.Tensor, parameters: Sequence[Parameter]) -> list[torch.Tensor]:
    """Views of a flat buffer, one per parameter, in their shapes."""
    pieces = flat.split([each.numel for each in parameters]) if parameters else ()
    return [piece.view(each.shape) for piece, each in zip(pieces, parameters, strict=True)]
