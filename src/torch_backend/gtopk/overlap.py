"""One backward: gradients arrive bucket by bucket, units leave as soon as they are complete.

It knows when things happen; what is selected and where residuals lie is SparseState's.

Threads: hooks call arrive() one after the other, on the thread of the backward, and so does the
backward's end call _finish(). Operations end on the backend's threads, several at once perhaps,
which copy results back and complete the buckets' futures. Nothing waits there, and no lock is held
while a future is completed: its callbacks run users' code.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import defaultdict
from typing import TYPE_CHECKING

import torch
from torch.distributed import AllreduceOptions, ReduceOp

from gtopk import _native
from gtopk.ddp import check_group, ddps_around, has_dropped, may_drop, version
from gtopk.exchange import Bucket, Buffers, Exchange
from gtopk.fingerprint import check_alike, description
from gtopk.groups import backend_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch.distributed as dist
    from torch._C._distributed_c10d import Work
    from torch.nn.parallel import DistributedDataParallel

    from gtopk._C import GtopkBackend
    from gtopk.state import SparseState


class Overlap:
    """The units of one SparseState between a gradient's arrival and its result's."""

    def __init__(self, state: SparseState, parameters: Mapping[str, torch.Tensor]) -> None:
        """Take the parameters of `state`, by name; buffers are made when gradients arrive."""
        self._state = state
        self._parameters = dict(parameters)  # held, so that their ids stay theirs
        unit_of = {name: i for i, unit in enumerate(state.units) for name in unit.names}
        self._places = {id(p): (name, unit_of[name]) for name, p in self._parameters.items()}
        self._exchanges: list[Exchange] = []
        self._buffers: list[Buffers | None] = [None] * len(state.units)
        self._changed = threading.Condition()  # of what threads share: see _done()
        self._backend: GtopkBackend | None = None
        self._compared = False
        self._ddps: list[weakref.ref[DistributedDataParallel]] = []
        self._may_drop = True
        self._open = False  # gradients of a backward have arrived, and its end was not seen

    def arrive(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Take the gradients of a bucket in; start every unit that they complete.

        The future holds the bucket's buffer, averaged, when all its units are done and copied back.
        """
        if bucket.index() == 0:
            self._begin(bucket)
        arrived = self._sorted(bucket)
        waiting = Bucket(bucket, len(arrived))
        complete = []
        with torch.no_grad():
            for index, gradients in arrived.items():
                exchange = self._exchanges[index]
                exchange.take(gradients, self._buffers_of(index), waiting)
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

    def settle(self) -> None:
        """Bring a backward that broke off to an end: nothing of it is under way or lost after this.

        Nobody has seen what its units delivered: it goes back to where residuals are kept.
        """
        if not self._open:
            return
        self._open = False
        for exchange in self._exchanges:
            for work in list(exchange.works):
                with contextlib.suppress(Exception):
                    work.wait()
        with self._changed:
            self._changed.wait_for(lambda: all(each.ended for each in self._exchanges))
        for exchange in self._exchanges:
            if exchange.delivered:
                for parameter in self._state.units[exchange.index].large:
                    self._put_back(exchange, parameter.name, None)
        self._exchanges = []  # lets go of DDP's buckets

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
                    "SparseState does not know: make the state with gtopk.attach(ddp, density=…), "
                    "after requires_grad is set"
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
            if self._may_drop:
                self._exchanges[index].versions[name] = version(parameter)
        return arrived

    def _begin(self, bucket: dist.GradBucket) -> None:
        self.settle()
        state = self._state
        self._backend = backend_of(state.group)
        # A DDP that is gone has given its place to another.
        if not self._compared or any(each() is None for each in self._ddps):
            ddps = ddps_around(state, bucket.parameters()[0])
            check_group(ddps, state.group)
            self._may_drop = may_drop(ddps)
            self._ddps = [weakref.ref(each) for each in ddps]
        if not self._compared:
            check_alike(description(state.config, state.units, state.step), state.group)
            self._compared = True
        self._exchanges = [Exchange(i, unit) for i, unit in enumerate(state.units)]
        self._open = True

    def _end(self) -> None:
        """After the last bucket: every unit is on its way."""
        missing = [name for each in self._exchanges for name in sorted(each.missing)]
        if missing:
            raise ValueError(
                f"gtopk: DDP does not reduce {len(missing)} parameters of its SparseState: "
                f"{', '.join(missing[:5])}{', ...' if len(missing) > 5 else ''}. Make the state "
                "with gtopk.attach(ddp, density=…), after requires_grad is set"
            )
        if torch._C._current_graph_task_id() == -1:
            # Not in a backward: under DDP's join() a rank without data calls the hook for the
            # others' sake, and drops all results.
            self._open = False
            self._state.step += 1
            return
        # DDP waits for the futures and writes .grad in a callback of the backward's, which it
        # queues after this one: the callback that this one queues comes after it.
        engine = torch.autograd.Variable._execution_engine
        engine.queue_callback(lambda: engine.queue_callback(self._finish))

    def _finish(self) -> None:
        """The backward has ended well: the step counts, and DDP has taken what it takes."""
        self._open = False
        self._state.step += 1
        exchanges, self._exchanges = self._exchanges, []  # lets go of DDP's buckets
        if not self._may_drop:
            return
        for exchange in exchanges:
            if not exchange.delivered:
                continue
            for parameter in self._state.units[exchange.index].large:
                name = parameter.name
                mine = self._parameters[name]
                if has_dropped(mine, exchange.versions[name], exchange.into[name]):
                    self._put_back(exchange, name, mine.grad)

    def _put_back(self, exchange: Exchange, name: str, kept: torch.Tensor | None) -> None:
        """Undo a delivery that reached no .grad, in the sum over ranks.

        What was delivered goes to the first rank. kept: the .grad that took part on this rank and
        is still there for another backward; it leaves this rank's residual.
        """
        residual = self._state.residual(name)
        assert residual is not None
        assert self._backend is not None
        assert exchange.buffers is not None
        with torch.no_grad():
            if kept is not None:
                residual.sub_(kept)
            if self._backend.rank() == 0:
                mean = exchange.buffers.views[name].to(residual.dtype)
                residual.add_(mean, alpha=self._backend.size())

    def _buffers_of(self, index: int) -> Buffers:
        buffers = self._buffers[index]
        if buffers is None:
            buffers = self._buffers[index] = Buffers(self._state.units[index])
        return buffers

    def _start(self, exchange: Exchange) -> None:
        works: list[Work] = []
        try:
            self._submit(exchange, works)
        except Exception as error:
            exchange.error = error
            raise
        finally:
            exchange.works = works
            exchange.under_way = len(works)
            exchange.ended = not works
            # After the bookkeeping: the callback of what is done already runs at once, here.
            for i, work in enumerate(list(works)):
                work.get_future().add_done_callback(
                    lambda done, first=i == 0: self._done(exchange, done, first)
                )

    def _submit(self, exchange: Exchange, works: list[Work]) -> None:
        """Start the unit's operations; `works` gets them as they are started, the sparse first."""
        state, backend, config = self._state, self._backend, self._state.config
        buffers = exchange.buffers
        assert backend is not None
        assert buffers is not None
        buffers.spread_not_finite(backend.size())
        elements = buffers.gradient.numel()
        if elements:
            density = state.density
            dense = density == "dense"
            k = elements if dense else _native.load().selection_size(elements, density)
            # Dense from the first step on leaves nothing behind: no memory to sweep, or to take.
            none = dense and state.unit_residual_is_zero(exchange.index)
            work = backend.sparse_all_reduce(
                buffers.gradient,
                None if none else state.unit_residual(exchange.index),
                k,
                "dense" if dense else config.algorithm,
                config.select,
                config.put_back,
                ReduceOp(ReduceOp.AVG),
            )
            works.append(work)
        if buffers.small.numel() or not works:
            options = AllreduceOptions()
            options.reduceOp = ReduceOp.AVG
            works.append(backend.allreduce([buffers.small], options))

    def _done(
        self, exchange: Exchange, done: torch.futures.Future[list[torch.Tensor]], first: bool
    ) -> None:
        """One of the unit's operations has ended; after the last, its buckets get the result."""
        error: Exception | None = None
        try:
            done.value()
        except Exception as failure:
            error = failure
        buffers = exchange.buffers
        assert buffers is not None
        with self._changed:
            # Even if the other part fails: settle() puts back what this one delivered.
            if first and error is None:
                exchange.delivered = buffers.happened()
            exchange.error = exchange.error or error
            exchange.under_way -= 1
            if exchange.under_way:
                return
        if exchange.error is None:
            try:
                with torch.no_grad():
                    exchange.copy_back()
            except Exception as failure:
                exchange.error = failure
        if exchange.error is not None and self._buffers[exchange.index] is buffers:
            # After an error the network may still hold them: the next backward gets others.
            self._buffers[exchange.index] = None
        with self._changed:
            exchange.works = []
            exchange.ended = True
            self._changed.notify_all()
            complete = [each for each in exchange.buckets if each.ends(exchange.error)]
        for bucket in complete:
            bucket.complete()
