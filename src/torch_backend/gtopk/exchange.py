"""One unit in one backward, its memory, and the buckets that wait for it. Knows no group."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from gtopk.collectives import ACCUMULATION
from gtopk.residuals import slots

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch.distributed as dist
    from torch._C._distributed_c10d import Work

    from gtopk.units import Unit


class Bucket:
    """A bucket of DDP's whose future is not complete: how many units it still waits for."""

    def __init__(self, bucket: dist.GradBucket, units: int) -> None:
        """Wait for `units` units."""
        self.waits_for = units
        self.error: Exception | None = None
        self._begin: torch.futures.Future[None] = torch.futures.Future()
        buffer = bucket.buffer()

        # Raised in a callback, for that is what makes an error of a future that C++ understands:
        # set_exception() of Python's future stores it as a value.
        def result(_: object) -> torch.Tensor:
            if self.error is not None:
                raise self.error
            return buffer

        self.future: torch.futures.Future[torch.Tensor] = self._begin.then(result)

    def ends(self, error: Exception | None) -> bool:
        """Count one unit as done; say whether it was the last. Not for two threads at once."""
        self.error = self.error or error
        self.waits_for -= 1
        return self.waits_for == 0

    def complete(self) -> None:
        """Run the future's callbacks, here."""
        self._begin.set_result(None)


class Buffers:
    """The flat memory of one unit, kept from backward to backward, with a view per parameter.

    A unit is one step: both parts are exchanged at once, and when one of them is not finite,
    neither has happened. The sparse exchange finds out for itself, and commits nothing; the dense
    one must not be the only one that is not finite.
    """

    def __init__(self, unit: Unit) -> None:
        """Take the memory. Small gradients are summed in the accumulation type."""
        self.gradient = torch.empty(unit.selected_numel, dtype=unit.dtype, device="cpu")
        accumulation = ACCUMULATION[unit.dtype]
        self.small = torch.empty(unit.dense_numel, dtype=accumulation, device="cpu")
        views = [*slots(self.gradient, unit.large), *slots(self.small, unit.small)]
        self.views = dict(zip(unit.names, views, strict=True))

    def spread_not_finite(self, ranks: int) -> None:
        """Before the exchange: make the large part not finite where the small one is not.

        Nor may the small part's sum overflow, which would show when the large part has committed:
        what could not be summed over this many ranks counts as not finite.
        """
        if not self.small.numel():
            return
        most = torch.finfo(self.small.dtype).max / (2 * ranks)
        if not torch.linalg.vector_norm(self.small, math.inf).item() <= most:
            self.small.fill_(math.nan)
            self.gradient[:1].fill_(math.nan)

    def happened(self) -> bool:
        """After the exchange: whether the large part was finite, everywhere."""
        # Every element of a step that was not is NaN: one will do.
        return not (self.gradient.numel() and math.isnan(self.gradient[0].item()))


class Exchange:
    """One unit in one backward."""

    def __init__(self, index: int, unit: Unit) -> None:
        """Nothing has arrived yet."""
        self.index = index
        self.missing = set(unit.names)
        self.buffers: Buffers | None = None
        self.buckets: list[Bucket] = []
        self.into: dict[str, torch.Tensor] = {}
        """Of each parameter its place in DDP's buckets."""
        self.versions: dict[str, int | None] = {}
        """Of each parameter that DDP may drop, its .grad's when it arrived."""
        self.works: list[Work] = []
        self.under_way = 0
        self.ended = True
        self.error: Exception | None = None
        self.delivered = False
        """The residual has changed: what left it is in the buffers."""

    def take(self, gradients: Mapping[str, torch.Tensor], buffers: Buffers, bucket: Bucket) -> None:
        """Copy gradients in."""
        self.buffers = buffers
        torch._foreach_copy_([buffers.views[name] for name in gradients], list(gradients.values()))
        self.into.update(gradients)
        self.buckets.append(bucket)
        self.missing.difference_update(gradients)

    def copy_back(self) -> None:
        """Copy results to where the gradients came from; NaN if the large part is that."""
        assert self.buffers is not None
        if not self.delivered:
            self.buffers.small.fill_(math.nan)
        views = [self.buffers.views[name] for name in self.into]
        torch._foreach_copy_(list(self.into.values()), views)
