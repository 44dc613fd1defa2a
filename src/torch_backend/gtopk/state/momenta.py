"""Momentum correction: each rank accumulates its momentum instead of its gradient.

Deep Gradient Compression (Lin et al., arXiv 1712.01887): u <- m u + g, and u instead of g is added
to the residual from which entries are selected. Where an entry was sent, u is cleared like the
residual (momentum factor masking). With Nesterov's momentum, g + m u is added. Dense exchanges (of
small parameters, or in a dense phase) average the same values and clear nothing, like the momentum
of plain SGD.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gtopk.ops.sparse_all_reduce import ACCUMULATION
from gtopk.state.residuals import load_into, slots

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gtopk.state.units import Unit


class Momenta:
    """One flat tensor per unit, large parameters first; kept twice: a step may not happen."""

    def __init__(self, units: Sequence[Unit], momentum: float, *, nesterov: bool) -> None:
        """Allocate nothing yet. momentum: m, in [0, 1); 0 disables it."""
        self._units = units
        self._momentum = momentum
        self._nesterov = nesterov
        self._flat: list[torch.Tensor | None] = [None] * len(units)
        self._next: list[torch.Tensor | None] = [None] * len(units)

    def __bool__(self) -> bool:
        """Return whether there is a momentum."""
        return self._momentum != 0

    def correct(
        self, index: int, large: Sequence[torch.Tensor], small: torch.Tensor
    ) -> torch.Tensor:
        """Replace a unit's gradients by the values to accumulate.

        Return the large part of the next momentum, to be cleared where entries are sent. keep()
        makes it the current one.
        """
        now = self.of_unit(index)
        coming = self._next[index]
        if coming is None:
            coming = self._next[index] = torch.empty_like(now)
        begin = 0
        for gradient in (*large, small):
            end = begin + gradient.numel()
            u = coming[begin:end]
            torch.add(gradient, now[begin:end], alpha=self._momentum, out=u)
            if self._nesterov:
                gradient.add_(u, alpha=self._momentum)
            else:
                gradient.copy_(u)
            begin = end
        return coming[: self._units[index].selected_numel]

    def keep(self, index: int) -> None:
        """Make the next momentum current once the unit's step has happened."""
        self._flat[index], self._next[index] = self._next[index], self._flat[index]

    def forget(self, name: str, gradient: torch.Tensor) -> float:
        """Remove a gradient that is in the momentum and will arrive again.

        Return the factor with which it was accumulated. Where it was sent, nothing of it is left in
        the momentum.
        """
        u = self.by_parameter()[name]
        u.sub_(gradient.to(u.dtype).where(u != 0, 0))
        return 1 + self._momentum if self._nesterov else 1.0

    def of_unit(self, index: int) -> torch.Tensor:
        """Return the momentum of a unit, initially zeros."""
        flat = self._flat[index]
        if flat is None:
            unit = self._units[index]
            numel = unit.selected_numel + unit.dense_numel
            with torch.inference_mode(False):  # so that the backward can write it
                flat = torch.zeros(numel, dtype=ACCUMULATION[unit.dtype], device=unit.device)
            self._flat[index] = flat
        return flat

    def by_parameter(self) -> dict[str, torch.Tensor]:
        """Return a view for each parameter; empty if there is no momentum."""
        momenta: dict[str, torch.Tensor] = {}
        for index, unit in enumerate(self._units if self else ()):
            views = slots(self.of_unit(index), (*unit.large, *unit.small))
            momenta.update(zip(unit.names, views, strict=True))
        return momenta

    def load(self, saved: Mapping[str, torch.Tensor]) -> None:
        """Copy momenta whose name, shape and type match; the others start from zero."""
        mine = self.by_parameter()
        with torch.no_grad():
            for each in mine.values():
                each.zero_()
        load_into(mine, saved)
