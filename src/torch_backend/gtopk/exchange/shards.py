"""Decisions that the ranks of a sharded model make together: its norm, and whether it is finite."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from gtopk.ops.sparse_all_reduce import ACCUMULATION

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gtopk.core import _native
    from gtopk.exchange.source import State
    from gtopk.exchange.unit_exchange import Exchange
    from gtopk.state.units import Unit


class Shards:
    """The ranks that hold the shards of one replica, including this rank."""

    def __init__(
        self,
        groups: Sequence[dist.ProcessGroup],
        copies: Mapping[str, int],
        device: torch.device | str,
    ) -> None:
        """Use these groups, one for each dimension in which a parameter is sharded.

        copies: how many ranks of a replica hold the same shard of a parameter. device: where
        gradients are; the groups may serve no other device.
        """
        self._groups = groups
        self._copies = copies
        self._device = device
        self._finite = True  # whether this rank's units were finite in this backward

    def begin(self) -> None:
        """Begin a backward."""
        self._finite = True

    def look_at(self, exchange: Exchange, state: State, replicas: int) -> None:
        """Note whether sums over the replicas, or scaled results, might not be finite.

        This is decided before the exchange, whose outcome only one replica group knows: it would
        have to wait for the outcomes of the other groups. Values count as too large if their sum
        over all replicas might be.
        """
        index = exchange.index
        traits = state.unit_options(index).traits
        parts = [each for each in (*exchange.large, exchange.small) if each.numel()]
        # The error of coding a sum is added to the error of coding its owner's part.
        terms = (4.0 if traits.rounds else 2.0) * replicas
        if exchange.large and not state.kept.residuals.is_zero(index):
            parts.append(state.kept.residuals.of_unit(index))
        if traits.adds_elements:
            terms *= sum(each.numel() for each in parts)
        dtype = ACCUMULATION[parts[0].dtype]
        most = torch.finfo(dtype).max / (terms * max(1.0, exchange.scale))
        # This is not "any above", because NaN is not above anything.
        norms = [torch.linalg.vector_norm(each, math.inf, dtype=dtype).item() for each in parts]
        self._finite = self._finite and all(norm <= most for norm in norms)

    def agree(
        self, gate: _native.Gate, exchanges: Sequence[Exchange], group: dist.ProcessGroup | None
    ) -> None:
        """Open the gate after a backward if every unit was finite on all ranks of all shards.

        Collective, also over the group of the replicas.
        """
        for exchange in exchanges:
            if exchange.missing:  # a module was not used
                gate.arrive(True)
        finite = torch.tensor([float(self._finite)], device=self._device)
        for each in (*self._groups, group):
            dist.all_reduce(finite, dist.ReduceOp.MIN, group=each)
        gate.arrive(finite.item() == 1)

    def norm(self, units: Sequence[Unit], exchanges: Sequence[Exchange]) -> float:
        """Return the norm over all shards, counting once what several ranks hold. Collective."""
        norms = []
        for each in exchanges:
            small = units[each.index].small
            norms.append(norm_of(each.large))
            for parameter, piece in zip(
                small, each.small.split([one.numel for one in small]), strict=True
            ):
                norms.append(norm_of([piece]) / math.sqrt(self._copies[parameter.name]))
        square = torch.tensor([math.hypot(*norms) ** 2], dtype=torch.float64, device=self._device)
        for group in self._groups:
            dist.all_reduce(square, group=group)
        return math.sqrt(square.item())


def norm_of(pieces: Iterable[torch.Tensor]) -> float:
    """Return the norm of all elements of these tensors, in double precision."""
    norms = [torch.linalg.vector_norm(each, dtype=torch.float64) for each in pieces]
    return math.hypot(*(each.item() for each in norms))
