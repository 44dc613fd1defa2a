"""One backward: gradients arrive bucket by bucket, units leave as soon as they are complete.

It knows when things happen; what is selected and where residuals lie is SparseState's.

Threads: hooks call arrive() one after the other, on the thread of the backward. Operations end on
the backend's completion thread, which copies results back and completes the buckets' futures.
Nothing waits there, and no lock is held while a future is completed: its callbacks run users' code.
"""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from typing import TYPE_CHECKING

import torch
from torch.distributed import AllreduceOptions, ReduceOp

from gtopk import _native
from gtopk.groups import backend_of
from gtopk.residuals import slots

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch.distributed as dist
    from torch._C._distributed_c10d import Work

    from gtopk._C import GtopkBackend
    from gtopk.state import SparseState
    from gtopk.units import Unit


class _Bucket:
    """A bucket of DDP's whose future is not complete: how many units it still waits for."""

    def __init__(self, bucket: dist.GradBucket, units: int) -> None:
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

    def complete(self) -> None:
        self._begin.set_result(None)


class _Buffers:
    """The flat memory of one unit, kept from backward to backward, with a view per parameter."""

    def __init__(self, unit: Unit) -> None:
        self.gradient = torch.empty(unit.selected_numel, dtype=unit.dtype, device="cpu")
        self.small = torch.empty(unit.dense_numel, dtype=unit.dtype, device="cpu")
        views = [*slots(self.gradient, unit.large), *slots(self.small, unit.small)]
        self.views = dict(zip(unit.names, views, strict=True))


class _Exchange:
    """One unit in one backward."""

    def __init__(self, index: int, unit: Unit) -> None:
        self.index = index
        self.missing = set(unit.names)
        self.buckets: list[_Bucket] = []
        self.into: list[torch.Tensor] = []  # the buckets' gradients, in the order of `out_of`
        self.out_of: list[torch.Tensor] = []
        self.works: list[Work] = []
        self.under_way = 0
        self.error: Exception | None = None


class Overlap:
    """The units of one SparseState between a gradient's arrival and its result's."""

    def __init__(self, state: SparseState, parameters: Mapping[str, torch.Tensor]) -> None:
        """Take the parameters of `state`, by name; buffers are made when gradients arrive."""
        self._state = state
        self._parameters = dict(parameters)  # held, so that their ids stay theirs
        unit_of = {name: i for i, unit in enumerate(state.units) for name in unit.names}
        self._places = {id(p): (name, unit_of[name]) for name, p in self._parameters.items()}
        self._exchanges: list[_Exchange] = []
        self._buffers: list[_Buffers | None] = [None] * len(state.units)
        self._lock = threading.Lock()  # of every waits_for, under_way and error
        self._backend: GtopkBackend | None = None

    def arrive(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Take the gradients of a bucket in; start every unit that they complete.

        The future holds the bucket's buffer, averaged, when all its units are done and copied back.
        """
        if bucket.index() == 0:
            self._begin()
        arrived = self._sorted(bucket)
        waiting = _Bucket(bucket, len(arrived))
        complete = []
        with torch.no_grad():
            for index, gradients in arrived.items():
                exchange = self._exchanges[index]
                buffer_views = self._buffers_of(index).views
                views = [buffer_views[name] for name in gradients]
                torch._foreach_copy_(views, list(gradients.values()))
                exchange.into.extend(gradients.values())
                exchange.out_of.extend(views)
                exchange.buckets.append(waiting)
                exchange.missing.difference_update(gradients)
                if not exchange.missing:
                    complete.append(exchange)
        # All ranks must call collectives in one order: that of the units, bucket by bucket.
        for exchange in sorted(complete, key=lambda each: each.index):
            self._start(exchange)
        if bucket.is_last():
            self._end()
        if not arrived:
            waiting.complete()
        return waiting.future

    def _sorted(self, bucket: dist.GradBucket) -> dict[int, dict[str, torch.Tensor]]:
        """Return the bucket's gradients by unit and name."""
        arrived: defaultdict[int, dict[str, torch.Tensor]] = defaultdict(dict)
        if bucket.buffer().layout != torch.strided:
            raise NotImplementedError(
                f"gtopk: a gradient of shape {tuple(bucket.buffer().shape)} is sparse "
                f"({bucket.buffer().layout}), which is not there yet under the hook: make its "
                "module with sparse=False"
            )
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            if id(parameter) not in self._places:
                raise ValueError(
                    f"gtopk: DDP reduces a parameter of shape {tuple(parameter.shape)} that its "
                    "SparseState does not know: make the state of the named_parameters() of the "
                    "model that DDP wraps, after requires_grad is set"
                )
            name, index = self._places[id(parameter)]
            if gradient.dtype != parameter.dtype:
                raise NotImplementedError(
                    f"gtopk: the gradient of '{name}' is reduced as {gradient.dtype}, its "
                    f"parameter is {parameter.dtype}: DDP's mixed_precision is not there yet under "
                    "the hook"
                )
            if name not in self._exchanges[index].missing:
                raise RuntimeError(
                    f"gtopk: the gradient of '{name}' came twice in one backward: every DDP needs "
                    "a SparseState of its own"
                )
            arrived[index][name] = gradient
        return arrived

    def _begin(self) -> None:
        self._backend = backend_of(self._state.group)
        for exchange in self._exchanges:
            # Only a backward that was interrupted leaves something under way. It reads and writes
            # the unit's residual, so it must end; its buffers stay its own.
            if exchange.under_way:
                self._buffers[exchange.index] = None
                for work in exchange.works:
                    with contextlib.suppress(Exception):
                        work.wait()
        self._exchanges = [_Exchange(i, unit) for i, unit in enumerate(self._state.units)]

    def _end(self) -> None:
        """After the last bucket: every unit is on its way, and the step counts."""
        missing = [name for each in self._exchanges for name in sorted(each.missing)]
        if missing:
            raise ValueError(
                f"gtopk: DDP does not reduce {len(missing)} parameters of its SparseState: "
                f"{', '.join(missing[:5])}{', ...' if len(missing) > 5 else ''}. Make the state of "
                "the named_parameters() of the model that DDP wraps, after requires_grad is set"
            )
        self._state.step += 1

    def _buffers_of(self, index: int) -> _Buffers:
        buffers = self._buffers[index]
        if buffers is None:
            buffers = self._buffers[index] = _Buffers(self._state.units[index])
        return buffers

    def _start(self, exchange: _Exchange) -> None:
        state, backend, config = self._state, self._backend, self._state.config
        assert backend is not None
        buffers = self._buffers_of(exchange.index)
        if buffers.gradient.numel():
            k = _native.load().selection_size(buffers.gradient.numel(), state.density)
            residual = state.unit_residual(exchange.index)
            work = backend.sparse_all_reduce(
                buffers.gradient,
                residual,
                k,
                config.algorithm,
                config.select,
                config.put_back,
                ReduceOp(ReduceOp.AVG),
            )
            exchange.works.append(work)
        if buffers.small.numel() or not exchange.works:
            options = AllreduceOptions()
            options.reduceOp = ReduceOp.AVG
            exchange.works.append(backend.allreduce([buffers.small], options))
        exchange.under_way = len(exchange.works)
        # After the bookkeeping: the callback of what is done already runs at once, here.
        for work in list(exchange.works):
            work.get_future().add_done_callback(lambda done: self._done(exchange, done))

    def _done(self, exchange: _Exchange, done: torch.futures.Future[list[torch.Tensor]]) -> None:
        error: Exception | None = None
        try:
            done.value()
        except Exception as failure:
            error = failure
        with self._lock:
            exchange.error = exchange.error or error
            exchange.under_way -= 1
            if exchange.under_way:
                return
        if exchange.error is None:
            with torch.no_grad():
                torch._foreach_copy_(exchange.into, exchange.out_of)
        else:
            # After an error the network may still hold them: the next backward gets others.
            self._buffers[exchange.index] = None
        exchange.into, exchange.out_of, exchange.works = [], [], []
        for bucket in exchange.buckets:
            with self._lock:
                bucket.error = bucket.error or exchange.error
                bucket.waits_for -= 1
                complete = bucket.waits_for == 0
            if complete:
                bucket.complete()
