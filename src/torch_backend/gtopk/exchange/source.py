"""What a backward needs of a SparseState, and of where its gradients come from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch.distributed as dist

    from gtopk.diagnostics.diagnose import Diagnostics
    from gtopk.exchange.places import ParameterSlot
    from gtopk.exchange.unit_exchange import Exchange
    from gtopk.ops.options import SparseOptions
    from gtopk.state.config import Config
    from gtopk.state.fingerprint import Line
    from gtopk.state.kept import Kept
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
    def kept(self) -> Kept:
        """Its residuals, momenta and selectors' states."""

    def choose(self) -> None:
        """Choose every unit's density and algorithm for the next backward, if due. Collective."""

    def unit_options(self, index: int) -> SparseOptions:
        """Return how ``units[index]`` is exchanged in the next backward."""

    def description(self) -> list[Line]:
        """Describe everything that must be the same on every rank."""


class Source:
    """Where gradients come from and results go: DDP's buckets, .grad, the buffers of FSDP.

    It calls Backward: begin(), take() for each part of the gradients, wait() if nobody else does,
    and close() when results are in .grad, or settle() if something failed. This is the simplest
    one.
    """

    merges = True
    """Whether units may be merged."""

    def arranged(self, slots: Mapping[str, ParameterSlot]) -> None:
        """Units have been formed: work out where parameters, by name, lie in them."""
        raise NotImplementedError

    def order(self, complete: list[Exchange]) -> list[Exchange]:
        """Return which exchanges start now that these are complete, in order.

        All ranks must call collectives in the same order: if gradients arrive in the same order on
        all of them, units can start as they complete.
        """
        return complete

    def results_to(self, exchange: Exchange) -> None:
        """A unit's results are in .grad: put back those that reach none."""

    def on_close(self, *, broken: bool) -> None:
        """A backward has ended, or broken off: the next gradient begins another."""

    def check_outside(self) -> None:
        """Raise RuntimeError if gradients are on their way to a step that is still to come."""
