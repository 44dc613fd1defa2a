"""gtopk.diagnose: compares the selections of a backward with the papers, every N backwards.

It copies the units' inputs and sums them over the ranks; inequalities.py has the formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
import torch.distributed as dist

from gtopk.core.groups import backend_of
from gtopk.core.standalone import create_backend
from gtopk.diagnostics.inequalities import of_rank, of_sum
from gtopk.ops.options import SparseOptions, check_whole
from gtopk.ops.sparse_all_reduce import ACCUMULATION
from gtopk.state.fingerprint import check_alike

if TYPE_CHECKING:
    from gtopk.state.units import Unit


class UnitDiagnosis(NamedTuple):
    """One unit in one backward; u is acc, gradient plus residual.

    Figures of the sum over the ranks (`sum_norm`, `lost_norm`, `delivered`, `delivered_recall`,
    `delta`) are the same on all ranks; the others are this rank's. docs/tuning.md explains them.
    """

    names: tuple[str, ...]
    """The unit's parameters, except small ones."""
    elements: int
    """d: the number of elements that the selection covers."""
    k: int
    """Entries that each rank selects."""
    density: float
    """k/d."""
    algorithm: str
    """The algorithm in use."""
    select: str
    """The selector in use."""
    random: float
    """1 - k/d: the expected share of |u|^2 that Random-k leaves."""
    bell: float
    """(1 - k/d)^2: the most that Top-k leaves of a bell-shaped u (arXiv 1911.08772, Theorem 1)."""
    norm: float
    """Norm of u."""
    contraction: float | None
    """The share of |u|^2 that Top-k leaves; at most `random`."""
    above_chord: float | None
    """How far the sorted squares of u rise above a straight line to 0; if 0, `bell` holds."""
    selected: int | None
    """Entries that the selector in use selects."""
    selected_contraction: float | None
    """The share of |u|^2 that these entries leave."""
    recall: float | None
    """The share of the Top-k entries that are among them."""
    histogram: list[int]
    """Histogram of u over its root mean square: 64 bins from -8 to 8."""
    sum_norm: float
    """Norm of the sum of all ranks' u."""
    lost_norm: float
    """Norm of the sum minus the result."""
    delivered: int
    """Entries of the result."""
    delivered_recall: float | None
    """The share of the sum's Top-k entries that are among them."""
    delta: float | None
    """The square of what was lost over what Random-k leaves of the sum's; holds if <= 1."""
    residual_norm: float
    """Norm of what this rank keeps after the exchange."""


class Diagnosis(NamedTuple):
    """The diagnosis of one backward."""

    step: int
    """The number of backwards before this one."""
    units: tuple[UnitDiagnosis, ...]
    """The units that were finite and sent a selection."""

    @property
    def delta(self) -> float | None:
        """Return gTop-k's delta of all units together (IJCAI 2019, Assumption 1); holds if <= 1."""
        random = sum(each.random * each.sum_norm**2 for each in self.units)
        return sum(each.lost_norm**2 for each in self.units) / random if random else None

    def rows(self) -> list[dict[str, Any]]:
        """Return plain values, one row per unit, for JSON and tools/plot."""
        return [{"step": self.step, **each._asdict()} for each in self.units]


Call = Callable[[Diagnosis], object]


class Diagnosed(Protocol):
    """The part of SparseState that this module needs."""

    diagnostics: Diagnostics
    group: dist.ProcessGroup | None


class Probe:
    """A unit's input, copied to the CPU before the exchange overwrites it."""

    def __init__(
        self,
        diagnostics: Diagnostics,
        unit: Unit,
        options: SparseOptions,
        large: Sequence[torch.Tensor],
        residual: torch.Tensor,
        state: torch.Tensor,
    ) -> None:
        """Copy acc, the sum of `large` and `residual`. state: the selector's state."""
        self.unit = unit
        self.options = options
        self.acc = torch.cat([each.flatten().to("cpu") for each in large])
        self.acc = self.acc.to(ACCUMULATION[unit.dtype]).add_(residual.to("cpu"))
        self.total = self.acc.clone()
        """acc, to be summed over the ranks."""
        self.selected = diagnostics.selection(self.acc, options, state)
        """The selected indices; None if the algorithm does not select per rank."""
        self.delivered: Sequence[torch.Tensor] = ()
        """The delivered indices and values, written by the exchange."""

    def diagnose(self, residual: torch.Tensor) -> UnitDiagnosis:
        """Diagnose the exchange, which left this residual."""
        unit, options = self.unit, self.options
        assert options.density is not None
        d = unit.selected_numel
        exact = options.select if options.traits.per_block else "exact"
        k = _selecting(options, exact).most_delivered(d, 1)
        indices, values = (each.cpu() for each in self.delivered)
        random = 1 - k / d
        return UnitDiagnosis(
            names=tuple(each.name for each in unit.large),
            elements=d,
            k=k,
            density=options.density,
            algorithm=options.algorithm,
            select=options.select,
            random=random,
            bell=random**2,
            **of_rank(self.acc, k, self.selected)._asdict(),
            **of_sum(self.total, k, indices, values)._asdict(),
            residual_norm=torch.linalg.vector_norm(residual, dtype=torch.float64).item(),
        )


class Diagnostics:
    """Decides which backwards are diagnosed, and calls the user's callback."""

    def __init__(self, every: int = 0, call: Call | None = None) -> None:
        """Diagnose each `every`-th backward; with 0, none."""
        self.every = every
        self._call = call
        # This group has one rank, so the result of a call is what this rank selects.
        self._alone = create_backend(dist.HashStore(), 0, 1) if every else None

    def wanted(self, step: int) -> bool:
        """Return whether the step-th backward (from 0) is to be diagnosed."""
        return self.every > 0 and step % self.every == 0

    def selection(
        self, acc: torch.Tensor, options: SparseOptions, state: torch.Tensor
    ) -> torch.Tensor | None:
        """Return the indices that this rank selects; None if ranks do not select."""
        if not options.traits.selects:
            return None
        assert self._alone is not None
        alone = _selecting(options, options.select)
        most = alone.most_delivered(acc.numel(), 1)
        indices = torch.zeros(most, dtype=torch.int64, device=acc.device)
        values = torch.zeros(most, dtype=acc.dtype, device=acc.device)
        self._alone.sparse_all_reduce(
            [acc.clone()], alone, delivered=[indices, values], state=state.clone()
        ).wait()
        return indices[values != 0]

    def tell(self, diagnosis: Diagnosis) -> None:
        """Pass the diagnosis to the callback."""
        if self._call is not None:
            self._call(diagnosis)


def _selecting(options: SparseOptions, select: str) -> SparseOptions:
    """Return options for a call on a single rank whose result is what that rank selects."""
    return SparseOptions(None, options.density, "topk", select, options.block, wire="raw")


def diagnose(state: Diagnosed, every: int, call: Call | None = None) -> None:
    """Measure what the selections of `state` leave out, in every `every`-th backward.

    For each unit, a diagnosis compares the contraction of Top-k with 1 - k/d and (1 - k/d)^2
    (arXiv 1911.08772, Theorem 1). It also reports the recall of the selector and of the result,
    delta against Random-k (Assumption 1 of Shi et al., IJCAI 2019, for gTop-k, and of arXiv
    1911.08727 for layers: with unit="parameter" each unit is a layer), norms and a histogram.
    ``gtopk.stats(group)["diagnosis"]`` returns the last one. Training results do not change.

    A diagnosed backward sums all of acc over the ranks, which sends as much as "dense" in addition
    to the exchange. It selects twice, sorts each unit twice, and holds two copies of all units
    until its end. Other backwards cost nothing. Units that travel as "dense" and units that were
    not finite are left out. Collective over the state's group: call it on all ranks, between two
    backwards.

    Args:
        state: a SparseState made by attach, fsdp_hook or DistributedOptimizer, or by its
            constructor.
        every: diagnose the backwards in which ``state.step`` is a multiple of this; 0 turns it off.
            It must be the same on all ranks.
        call: called with each Diagnosis, on this rank, at the end of the backward and on its
            thread. If it raises, the backward raises too, but still counts.

    Raises:
        TypeError: `state` is not a SparseState.
        ValueError: `every` is not a whole number of 0 or more, or differs between ranks; `call` is
            not callable; or the state's group is not a gtopk group.
    """
    if not isinstance(getattr(state, "diagnostics", None), Diagnostics):
        raise TypeError(
            f"gtopk: the first argument must be a SparseState, given a {type(state).__name__}"
        )
    if call is not None and not callable(call):
        raise ValueError(f"gtopk: call must be a function, given {type(call).__name__}")
    diagnostics = Diagnostics(check_whole(every, "every", 0), call)
    backend_of(state.group)
    check_alike([("diagnose's every is", str(diagnostics.every))], state.group)
    state.diagnostics = diagnostics
