"""Protocols that a backward needs: a SparseState, and the source of its gradients."""

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
    """The part of SparseState that this module needs."""

    config: Config
    step: int
    group: dist.ProcessGroup | None
    scaler: Scaler | None
    rates: Rates | None
    diagnostics: Diagnostics

    @property
    def units(self) -> tuple[Unit, ...]:
        """The units; each is covered by one selection."""

    @property
    def kept(self) -> Kept:
        """The residuals, momenta and selectors' states."""

    def choose(self) -> None:
        """Choose density and algorithm of every unit for the next backward, if due. Collective."""

    def unit_options(self, index: int) -> SparseOptions:
        """Return how ``units[index]`` is exchanged in the next backward."""

    def description(self) -> list[Line]:
        """Describe everything that must be the same on every rank."""


class Source:
    """Hands over gradients and takes results: DDP's buckets, .grad, or the buffers of FSDP.

    A source calls these methods of Backward: begin(), take() for each part of the gradients, wait()
    if nothing else waits, and close() when results are in .grad, or settle() if something failed.
    This class is the simplest source.
    """

    merges = True
    """Whether units may be merged."""

    def arranged(self, slots: Mapping[str, ParameterSlot]) -> None:
        """Look up the slots of the parameters, by name, in units that have just been formed."""
        raise NotImplementedError

    def order(self, complete: list[Exchange]) -> list[Exchange]:
        """Return the exchanges to start now that these are complete, in order.

        All ranks must call collectives in the same order. If gradients arrive in the same order on
        all ranks, units can start as they complete.
        """
        return complete

    def results_to(self, exchange: Exchange) -> None:
        """Return a unit's results that reach no .grad to the residual, once the others are done."""

    def on_close(self, *, broken: bool) -> None:
        """Note that a backward has ended or was aborted; the next gradient begins a new one."""

    def check_outside(self) -> None:
        """Raise RuntimeError if gradients have been collected for a later step."""
