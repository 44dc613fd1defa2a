"""The selector's state of each unit, kept for the next step. Knows no exchange.

The native part reads it when a step selects and writes it once that step has happened; the meaning
of the numbers is private to the selector. Zeros: the next step starts afresh.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gtopk.ops.sparse_all_reduce import new_selector_state

if TYPE_CHECKING:
    from collections.abc import Sequence


class SelectorStates:
    """One state per unit."""

    def __init__(self, units: int) -> None:
        """Start with zeros."""
        self._states = [new_selector_state() for _ in range(units)]

    def of_unit(self, index: int) -> torch.Tensor:
        """Return the state of a unit, which the native part writes."""
        return self._states[index]

    def copies(self) -> list[torch.Tensor]:
        """Return a copy of each."""
        return [state.clone() for state in self._states]

    def load(self, saved: Sequence[torch.Tensor]) -> None:
        """Copy these states, one for each unit; if empty, start afresh."""
        with torch.no_grad():
            for i, state in enumerate(self._states):
                if saved:
                    state.copy_(saved[i])
                else:
                    state.zero_()
