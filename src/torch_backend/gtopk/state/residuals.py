"""What a rank keeps of its selections: residuals and selector states. Uses no exchange."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gtopk.ops.sparse_all_reduce import ACCUMULATION, new_selector_state
from gtopk.state.saved import IncompatibleKeys

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gtopk.state.units import Parameter, Unit


class Residuals:
    """One flat tensor per unit, allocated as zeros on first use, and views by parameter."""

    def __init__(self, units: Sequence[Unit]) -> None:
        """Allocate nothing yet."""
        self._units = units
        self._flat: list[torch.Tensor | None] = [None] * len(units)
        self._small = {each.name for unit in units for each in unit.small}
        self._unit_of = {each.name: i for i, unit in enumerate(units) for each in unit.large}

    def of_unit(self, index: int) -> torch.Tensor:
        """Return the flat residual of a unit, initially zeros."""
        flat = self._flat[index]
        if flat is None:
            unit = self._units[index]
            dtype = ACCUMULATION[unit.dtype]
            with torch.inference_mode(False):  # so that the backward can write it
                flat = torch.zeros(unit.selected_numel, dtype=dtype, device=unit.device)
            self._flat[index] = flat
        return flat

    def is_zero(self, index: int) -> bool:
        """Return whether a unit has no residual: it was not used yet, or was released."""
        return self._flat[index] is None

    def decay(self, index: int, factor: float) -> None:
        """Multiply a unit's residual by `factor`; by 0, release it."""
        flat = self._flat[index]
        if flat is None or factor == 1:
            return
        if factor == 0:
            self._flat[index] = None
        else:
            flat.mul_(factor)

    @property
    def all_zero(self) -> bool:
        """Return whether no unit has a residual."""
        return all(each is None for each in self._flat)

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

    def load(self, saved: Mapping[str, torch.Tensor], *, strict: bool) -> IncompatibleKeys:
        """Copy the residuals whose name, shape and type match.

        strict: raise ValueError, and copy none, unless both sides match completely.
        """
        mine = self.by_parameter()
        fit = _fitting(mine, saved)
        missing = sorted(mine.keys() - fit)
        unexpected = sorted(saved.keys() - fit)
        if strict and (missing or unexpected):
            raise ValueError(
                "gtopk: the saved residuals are for other parameters: none matches "
                f"{missing}, and {unexpected} are not expected; strict=False loads the others"
            )
        load_into(mine, saved)
        return IncompatibleKeys(missing, unexpected)


def _fitting(mine: Mapping[str, torch.Tensor], saved: Mapping[str, torch.Tensor]) -> list[str]:
    return [
        name
        for name, view in mine.items()
        if name in saved and (view.shape, view.dtype) == (saved[name].shape, saved[name].dtype)
    ]


def load_into(mine: Mapping[str, torch.Tensor], saved: Mapping[str, torch.Tensor]) -> None:
    """Copy the tensors whose name, shape and type match."""
    with torch.no_grad():
        for name in _fitting(mine, saved):
            mine[name].copy_(saved[name])


def slots(flat: torch.Tensor, parameters: Sequence[Parameter]) -> list[torch.Tensor]:
    """Return views of a flat buffer, one per parameter, in their shapes.

    The buffer has a parameter's elements in the order of the parameter's memory.
    """
    pieces = flat.split([each.numel for each in parameters]) if parameters else ()
    return [_shaped(piece, each) for piece, each in zip(pieces, parameters, strict=True)]


def _shaped(piece: torch.Tensor, parameter: Parameter) -> torch.Tensor:
    shape, order = parameter.shape, parameter.order
    if order is None:
        return piece.view(shape)
    return piece.view([shape[i] for i in order]).permute(
        [order.index(i) for i in range(len(order))]
    )


class SelectorStates:
    """The selector's state of each unit.

    The native part reads it when a step selects and writes it once that step has happened. Only the
    selector knows the meaning of the numbers. With zeros, the next step starts afresh.
    """

    def __init__(self, units: int) -> None:
        """Start with zeros."""
        self._states = [new_selector_state() for _ in range(units)]

    def of_unit(self, index: int) -> torch.Tensor:
        """Return the state of a unit, which the native part writes."""
        return self._states[index]

    def copies(self) -> list[torch.Tensor]:
        """Return a copy of each state."""
        return [state.clone() for state in self._states]

    def load(self, saved: Sequence[torch.Tensor]) -> None:
        """Copy these states, one per unit; if there are none, start afresh."""
        with torch.no_grad():
            for i, state in enumerate(self._states):
                if saved:
                    state.copy_(saved[i])
                else:
                    state.zero_()
