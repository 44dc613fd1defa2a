"""What the selections of each unit leave for the next step. Knows no exchange.

The native part reads it when a step selects and writes it when that step has happened; what the
numbers mean is the selector's business. Zeros are nothing: the next step starts anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gtopk.collectives import new_selector_state

if TYPE_CHECKING:
    from collections.abc import Sequence


class SelectorStates:
    """One state per unit."""

    def __init__(self, units: int) -> None:
        """Nothing is kept yet."""
        self._states = [new_selector_state() for _ in range(units)]

    def of_unit(self, index: int) -> torch.Tensor:
        """Return the state of a unit, which the native part writes."""
        return self._states[index]

    def copies(self) -> list[torch.Tensor]:
        """Return a copy of each."""
        return [state.clone() for state in self._states]

    def load(self, saved: Sequence[torch.Tensor]) -> None:
        """Take copies of these, one for each unit; of none: start anew."""
        with torch.no_grad():
            for i, state in enumerate(self._states):
                if saved:
                    state.copy_(saved[i])
                else:
                    state.zero_()
