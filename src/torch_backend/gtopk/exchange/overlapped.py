"""What a backward needs of a SparseState: see overlap.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

    from gtopk.diagnostics.diagnose import Diagnostics
    from gtopk.ops.options import SparseOptions
    from gtopk.state.config import Config
    from gtopk.state.fingerprint import Line
    from gtopk.state.momenta import Momenta
    from gtopk.state.rates import Rates, Scaler
    from gtopk.state.units import Unit


class State(Protocol):
    """The part of SparseState that is needed here."""

    config: Config
    step: int
    group: dist.ProcessGroup | None
    scaler: Scaler | None
    rates: Rates | None
    diagnostics: Diagnostics

    @property
    def units(self) -> tuple[Unit, ...]:
        """Each is covered by one selection."""

    @property
    def momenta(self) -> Momenta:
        """They correct gradients, and advance with each step."""

    def residual(self, name: str) -> torch.Tensor | None:
        """Return the parameter's residual as a view."""

    def unit_residual(self, index: int) -> torch.Tensor:
        """Return the flat residual of ``units[index]``."""

    def unit_residual_is_zero(self, index: int) -> bool:
        """Whether nothing has been left undelivered yet."""

    def dense_needs_no_residual(self, index: int) -> bool:
        """Whether "dense" has nothing to read there, and leaves nothing."""

    def unit_selector_state(self, index: int) -> torch.Tensor:
        """Return what the selector of ``units[index]`` keeps."""

    def choose(self) -> None:
        """Choose every unit's density and algorithm for the next backward, if due. Collective."""

    def unit_options(self, index: int) -> SparseOptions:
        """Return how ``units[index]`` is exchanged in the next backward."""

    def description(self) -> list[Line]:
        """Describe everything that must be the same on every rank."""
