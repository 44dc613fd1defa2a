"""One unit in one backward, its memory, and the buckets that wait for it. Uses no group.

The large part is exchanged in place, for example in DDP's buckets. The small part is packed into a
separate buffer, in the accumulation type.
"""

from __future__ import annotations

import copy
import math
import operator
from typing import TYPE_CHECKING

import torch
from torch.distributed import AllreduceOptions

from gtopk.core import _native
from gtopk.ops.sparse_all_reduce import ACCUMULATION

if TYPE_CHECKING:
    import threading
    from collections.abc import Collection, Mapping, Sequence

    from torch._C._distributed_c10d import Work

    from gtopk.core.backend import GtopkBackend
    from gtopk.diagnostics.diagnose import Probe
    from gtopk.exchange.places import BucketPart
    from gtopk.state.units import Unit

_NOTHING = torch.empty(0, device="cpu")


class Bucket:
    """A DDP bucket whose future is not complete, and the number of units it still waits for."""

    def __init__(self, buffer: torch.Tensor, units: int) -> None:
        """Wait for `units` units. buffer: the bucket's buffer."""
        self.waits_for = units
        self.error: Exception | None = None
        # On a device the buffer is ready when the future completes (see finish()), so the future
        # need not order any stream.
        devices: list[int | str | torch.device] = []
        if buffer.device.type != "cpu":
            devices.append(buffer.device)
        self._buffer = buffer
        self.future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)

    def ends(self, error: Exception | None) -> bool:
        """Count one unit as done; return whether it was the last. Not thread-safe."""
        self.error = self.error or error
        self.waits_for -= 1
        return self.waits_for == 0

    def complete(self) -> None:
        """Complete the future; runs its callbacks on this thread."""
        if self.error is None:
            self.future.set_result(self._buffer)
        else:
            _native.fail(self.future, self.error)


class ExactBucket(Bucket):
    """A bucket with one sparse COO gradient, which is averaged without selection.

    It waits for its own all-reduce and for `exchanges`: if one of them did not happen, its
    all-reduce does not happen either.
    """

    def __init__(
        self,
        gradient: torch.Tensor,
        exchanges: Sequence[Exchange],
        gate: _native.Gate | None,
    ) -> None:
        """Wait for these exchanges. gate: the gate at which its all-reduce counts as one part."""
        super().__init__(gradient, 1 + len(exchanges))
        self.gradient = gradient
        self.exchanges = exchanges
        self.gate = gate
        self.works: list[Work] = []
        self.ended = True

    def norm(self) -> float:
        """Return the norm of this rank's gradient, as a double; equal indices are added first."""
        values = self.gradient.coalesce().values()
        return float(torch.linalg.vector_norm(values, dtype=torch.float64))

    def multiply(self, factor: float) -> None:
        """Scale this rank's gradient."""
        self.gradient._values().mul_(factor)

    def finite(self) -> bool:
        """Return whether the gradient is finite; after the all-reduce, all ranks agree."""
        return bool(self.gradient._values().isfinite().all())

    def start(self, backend: GtopkBackend, changed: threading.Condition) -> None:
        """Start the all-reduce. changed: guards state that other units' threads change too."""
        with changed:
            for exchange in self.exchanges:
                if exchange.finished:
                    self.ends(exchange.error)
                else:
                    exchange.buckets.append(self)
        work = backend.allreduce([self.gradient], AllreduceOptions())
        self.works, self.ended = [work], False
        result = backend.end_of(work)
        result.add_done_callback(lambda done: self._done(done, backend.size(), changed))

    def _done(
        self,
        done: torch.futures.Future[list[torch.Tensor]],
        ranks: int,
        changed: threading.Condition,
    ) -> None:
        """Take the sums that have arrived; with a gate, they are one of its parts."""
        error: Exception | None = None
        try:
            with torch.no_grad():
                mean = done.value()[0].div_(ranks)
            finish(mean.device)
        except Exception as failure:
            error = failure
        if self.gate is not None:
            self.gate.arrive(error is None and self.finite())
        with changed:
            self.works, self.ended = [], True
            changed.notify_all()
            last = self.ends(error)
        if last:
            self.complete()

    def complete(self) -> None:
        """Complete the future; runs its callbacks on this thread."""
        if self.error is None and not all(each.delivered for each in self.exchanges):
            with torch.no_grad():
                self.gradient._values().fill_(math.nan)
            finish(self.gradient.device)
        super().complete()


class Note:
    """A record of what a sparse all-reduce delivered, needed because DDP may overwrite its buckets.

    It holds sums over the ranks, in the accumulation type. Its memory is reused in the next
    backward.
    """

    def __init__(
        self, capacity: int, dtype: torch.dtype, device: torch.device | str, *, dense: bool
    ) -> None:
        """Allocate memory for the gradient's type. dense: hold all elements, in order."""
        self.dense = dense
        self.indices = torch.empty(0 if dense else capacity, dtype=torch.int64, device=device)
        self.values = torch.empty(capacity, dtype=ACCUMULATION[dtype], device=device)

    def fits(self, capacity: int, *, dense: bool) -> bool:
        """Return whether its memory has exactly this size."""
        return (self.values.numel(), self.dense) == (capacity, dense)

    def clear(self) -> None:
        """Zero the memory before the exchange, because a result may be shorter."""
        if not self.dense:
            self.indices.zero_()
            self.values.zero_()

    def tensors(self) -> list[torch.Tensor]:
        """Return its memory: indices and values."""
        return [self.indices, self.values]

    def forget(self, begin: int, end: int) -> None:
        """Drop the elements from `begin` to `end`, which were not delivered after all."""
        if self.dense:
            self.values[begin:end].zero_()
        else:
            self.values[(self.indices >= begin) & (self.indices < end)] = 0

    def add_to(self, residual: torch.Tensor) -> None:
        """Add what was delivered to the residual."""
        if self.dense:
            residual.add_(self.values)
        else:
            residual.index_add_(0, self.indices, self.values)


class Exchange:
    """One unit in one backward.

    A unit is one step: both parts are exchanged at once, and if one of them is not finite, neither
    part's step happens. The sparse exchange detects non-finite values and then commits nothing, so
    the dense part must not be the only one that is not finite.
    """

    def __init__(
        self,
        index: int,
        names: Collection[str],
        scale: float = 1.0,
        gate: _native.Gate | None = None,
        rates: Mapping[str, float] | None = None,
    ) -> None:
        """Start without gradients of the unit's parameters.

        scale: the factor on the results. gate: the gate at which the unit waits for others. rates:
        each parameter's gradient is multiplied by its rate before it is accumulated, and its result
        is divided by it.
        """
        self.index = index
        self.scale = scale
        self.gate = gate
        self._rates = rates
        self._rated: list[tuple[torch.Tensor, float]] = []  # (part, rate), if rates differ
        self.missing = set(names)
        self.large: list[torch.Tensor] = []
        """The pieces of the large part, in the order of the unit, once everything has arrived."""
        self.small = _NOTHING
        """The small part, in one piece, once everything has arrived."""
        self.buckets: list[Bucket] = []
        self.into: dict[str, torch.Tensor] = {}
        """For each parameter that DDP may drop: its position in DDP's buckets."""
        self.versions: dict[str, int | None] = {}
        """For each parameter that DDP may drop: the version of its .grad when it arrived."""
        self.clipped = 1.0
        """The factor by which clipping multiplied its gradients on this rank."""
        self.works: list[Work] = []
        self.results: list[torch.futures.Future[list[torch.Tensor]]] = []
        """The results of its operations."""
        self.under_way = 0
        self.ended = True
        self.finished = False
        """Set after the last of its operations."""
        self.error: Exception | None = None
        self.delivered = False
        """Whether the residual has changed: what left it is in the large part, and in the note."""
        self.note: Note | None = None
        """Set on the rank that takes back what DDP drops."""
        self.probe: Probe | None = None
        """Set if this backward is diagnosed."""
        self._large: list[tuple[int, torch.Tensor]] = []  # (first position, values)
        self._small: list[tuple[int, torch.Tensor]] = []  # gather() sorts both lists

    def take(self, part: BucketPart, pieces: Sequence[torch.Tensor], bucket: Bucket | None) -> None:
        """Record which part of the unit has arrived, and in which pieces of the buffer."""
        self._large += [(position, pieces[i]) for position, i in part.large]
        self._small += [(position, pieces[i]) for position, i in part.small]
        if bucket is not None:
            self.buckets.append(bucket)
        self.missing -= part.names

    def gather(self, small: torch.Tensor) -> None:
        """Order what has arrived as in the unit; copy the small part to `small`."""
        for parts in (self._large, self._small):
            parts.sort(key=operator.itemgetter(0))
        self.large = [piece for _, piece in self._large if piece.numel()]
        self.small = small
        if small.numel():
            torch.cat([piece for _, piece in self._small], out=small)

    def to_updates(self, unit: Unit) -> None:
        """Turn gradients into updates, before the exchange of `unit`, if there are rates.

        A single rate for all parameters is divided out together with the scale; different rates are
        divided out part by part.
        """
        rates = self._rates
        if rates is None:
            return
        parts = [*self.large, self.small] if self.small.numel() else self.large
        if len(set(rates.values())) == 1:
            rate = next(iter(rates.values()))
            for part in parts:
                part.mul_(rate)
            self.scale /= rate
            self._rates = None
            return
        parameters = [each for each in (*unit.large, *unit.small) if each.numel]
        at = 0
        for part in parts:
            begin = 0
            while begin < part.numel():
                end = begin + parameters[at].numel
                self._rated.append((part[begin:end], rates[parameters[at].name]))
                begin, at = end, at + 1
        for part, rate in self._rated:
            part.mul_(rate)

    def rate(self, name: str) -> float:
        """Return the rate by which a parameter's result was divided, in addition to the scale."""
        return 1.0 if self._rates is None else self._rates[name]

    def spread_not_finite(self, ranks: int) -> None:
        """Make the large part non-finite, before the exchange, if the small part is.

        The small part's sum, or its scaled result, must not overflow either, because that would
        show only after the large part has committed. So values too large to be summed over this
        many ranks count as non-finite.
        """
        if not self.small.numel():
            return
        most = torch.finfo(self.small.dtype).max / (2 * ranks * max(1.0, self.scale))
        if not _largest(self.small) <= most:
            self.small.fill_(math.nan)
            if self.large:
                self.large[0][:1].fill_(math.nan)

    def happened(self) -> bool:
        """Return, after the exchange, whether the unit was finite on all ranks."""
        if not self.large:
            return math.isfinite(_largest(self.small))
        # Every element of a step that did not happen is NaN: checking one is enough.
        return not math.isnan(self.large[0][0].item())

    def let_go(self) -> None:
        """Release the gradients, and the buckets that hold them, after the backward."""
        self.large, self._large, self._small, self.results = [], [], [], []
        self.into, self.buckets, self._rated, self.probe = {}, [], [], None

    def scatter(self) -> None:
        """Copy the small part back to where it came from; if the large part is NaN, write NaN.

        On a device this blocks until the copy is done.
        """
        # On a device each operation writes its results on its own stream.
        for result in self.results:
            result.wait()
        self._scatter()
        finish((self.large[0] if self.large else self.small).device)

    def _scatter(self) -> None:
        if self.small.numel():
            if not self.delivered:
                self.small.fill_(math.nan)
            elif self.scale != 1:
                self.small.mul_(self.scale)
        for part, rate in self._rated:
            part.div_(rate)
        if not self.small.numel():
            return
        places = [piece for _, piece in self._small]
        sizes = [each.numel() for each in places]
        torch._foreach_copy_(places, self.small.split_with_sizes(sizes))


def _largest(values: torch.Tensor) -> float:
    """Return the largest magnitude; NaN if there is a NaN."""
    # abs() and max() are two passes, but take a fifth of the time of linalg.vector_norm() or of
    # isfinite().all().
    return values.abs().max().item()


def finish(device: torch.device) -> None:
    """Block until the device has finished all work of the current stream.

    This is needed because code that waits for a bucket does not know the stream of the callback
    that completes it.
    """
    if device.type != "cpu":
        torch.accelerator.current_stream(device).synchronize()


def without_traceback(error: Exception) -> Exception:
    """Return a copy of the error that can be kept while the error itself is raised.

    The original's traceback would hold the frames of the training loop, these hold the DDP, and the
    DDP holds us.
    """
    try:
        return copy.copy(error)
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")


def flat(gradient: torch.Tensor) -> torch.Tensor:
    """Return the elements of a gradient without gaps, in memory order, whatever its shape."""
    return gradient.as_strided((gradient.numel(),), (1,))
