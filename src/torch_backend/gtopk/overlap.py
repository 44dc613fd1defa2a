"""One backward: gradients arrive bucket by bucket, units leave as soon as they are complete.

It knows when things happen; what is selected and where residuals lie is SparseState's.

Threads: hooks call arrive() one after the other, on the thread of the backward, and so does the
backward's end call _finish(). Operations end on the backend's threads, several at once perhaps,
which copy small results back and complete the buckets' futures. Nothing waits there, and no lock is
held while a future is completed: its callbacks run users' code.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import TYPE_CHECKING, Protocol

import torch
from torch.distributed import AllreduceOptions, ReduceOp

from gtopk import _native
from gtopk.advice import warn_of_dear_phases
from gtopk.choices import wire_named
from gtopk.collectives import ACCUMULATION
from gtopk.ddp import check_group, ddps_around, has_dropped, may_drop, version
from gtopk.exchange import Bucket, Exchange, Note
from gtopk.fingerprint import check_alike
from gtopk.groups import backend_of
from gtopk.places import layout_of, places_of
from gtopk.scaling import scale_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch.distributed as dist
    from torch._C._distributed_c10d import Work
    from torch.nn.parallel import DistributedDataParallel

    from gtopk.backend import GtopkBackend
    from gtopk.config import Config, Density
    from gtopk.fingerprint import Line
    from gtopk.momenta import Momenta
    from gtopk.places import Layout
    from gtopk.scaling import Scaler
    from gtopk.units import Unit


class State(Protocol):
    """What is asked of a SparseState."""

    config: Config
    step: int
    units: tuple[Unit, ...]
    group: dist.ProcessGroup | None
    scaler: Scaler | None
    momenta: Momenta

    @property
    def density(self) -> Density:
        """Of the next backward."""

    def residual(self, name: str) -> torch.Tensor | None:
        """Return the parameter's residual as a view."""

    def unit_residual(self, index: int) -> torch.Tensor:
        """Return the flat residual of ``units[index]``."""

    def unit_residual_is_zero(self, index: int) -> bool:
        """Whether nothing has been left undelivered yet."""

    def unit_selector_state(self, index: int) -> torch.Tensor:
        """Return what the selector of ``units[index]`` keeps."""

    def choose_algorithms(self) -> None:
        """Collective: know every unit's algorithm of the next backward."""

    def unit_algorithm(self, index: int) -> str:
        """Return the algorithm of ``units[index]`` in the next backward."""

    def description(self) -> list[Line]:
        """Say all that must be alike on every rank."""


class Overlap:
    """The units of one SparseState between a gradient's arrival and its result's."""

    def __init__(self, state: State, parameters: Mapping[str, torch.Tensor]) -> None:
        """Take the parameters of `state`, by name; memory is taken when gradients arrive."""
        self._state = state
        self._parameters = dict(parameters)  # held, so that their ids stay theirs
        places = places_of(state.units)
        self._places = {id(p): places[name] for name, p in self._parameters.items()}
        self._layouts: dict[tuple[int, ...], Layout] = {}  # by the ids of a bucket's parameters
        self._names = [frozenset(unit.names) for unit in state.units]
        self._exchanges: list[Exchange] = []
        self._small: list[torch.Tensor | None] = [None] * len(state.units)  # their memory
        self._notes: list[Note | None] = [None] * len(state.units)
        self._changed = threading.Condition()  # of what threads share: see _done()
        self._backend: GtopkBackend | None = None
        self._compared = False
        self._ddps: list[weakref.ref[DistributedDataParallel]] = []
        self._may_drop = True
        self._open = False  # gradients of a backward have arrived, and its end was not seen
        self._scale = 1.0  # what the gradients of this backward were multiplied by
        self._gate: torch.ScriptObject | None = None  # at which its units wait for one another
        self._last: list[Exchange] = []  # what the last backward delivered, noted on this rank

    def arrive(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Take the gradients of a bucket in; start every unit that they complete.

        The future holds the bucket's buffer, averaged, when all its units are done.
        """
        try:
            return self._arrive(bucket)
        except BaseException:
            self._shut_gate()
            raise

    def _arrive(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        if bucket.index() == 0:
            self._begin(bucket)
        layout = self._layout(bucket)
        waiting = Bucket(bucket, len(layout.shares))
        complete = []
        with torch.no_grad():
            if self._scale != 1:
                bucket.buffer().div_(self._scale)
            pieces = bucket.buffer().split(layout.sizes)
            for share in layout.shares:
                exchange = self._exchanges[share.unit]
                exchange.take(share, pieces, waiting)
                if not exchange.missing:
                    complete.append(exchange)
            # All ranks must call collectives in one order: that of the units, bucket by bucket.
            for exchange in complete:
                exchange.gather(self._small_of(exchange.index))
                self._start(exchange)
        if bucket.is_last():
            self._end()
        if not layout.shares:
            waiting.complete()
        return waiting.future

    def settle(self) -> None:
        """Bring a backward that broke off to an end: nothing of it is under way or lost after this.

        Nobody has seen what its units delivered: it goes back to where residuals are kept.
        """
        if not self._exchanges:
            return
        broken, self._open = self._open, False
        if broken:
            self._shut_gate()
        for exchange in self._exchanges:
            for work in list(exchange.works):
                with contextlib.suppress(Exception):
                    work.wait()
        with self._changed:
            self._changed.wait_for(lambda: all(each.ended for each in self._exchanges))
        self._keep_momenta()
        for exchange in self._exchanges:
            # Not out of DDP's buckets, which may have been written since.
            if broken and exchange.delivered and exchange.note is not None:
                exchange.note.add_to(self._state.unit_residual(exchange.index))
        self._exchanges = []  # lets go of DDP's buckets

    def _keep_momenta(self) -> None:
        """All has ended: momenta go on where a step happened; with a gate, all or none."""
        momenta = self._state.momenta
        together = self._gate is None or all(each.delivered for each in self._exchanges)
        for exchange in self._exchanges if momenta and together else ():
            if exchange.delivered:
                momenta.keep(exchange.index)

    def skip(self) -> None:
        """Give what the last backward delivered back to where residuals are kept; once."""
        self.settle()
        last, self._last = self._last, []
        for exchange in last:
            assert exchange.note is not None
            exchange.note.add_to(self._state.unit_residual(exchange.index))

    def _shut_gate(self) -> None:
        """Nothing more will arrive: units that wait for others do not commit."""
        if self._gate is not None:
            self._gate.shut()

    def _layout(self, bucket: dist.GradBucket) -> Layout:
        """Find out which units' gradients the bucket holds, and where, and that they may come."""
        buffer, parameters = bucket.buffer(), bucket.parameters()
        if buffer.layout != torch.strided:
            raise NotImplementedError(
                f"gtopk: a gradient of shape {tuple(buffer.shape)} is sparse "
                f"({buffer.layout}), which is not there yet under the hook: make its "
                "module with sparse=False"
            )
        ids = tuple(map(id, parameters))
        layout = self._layouts.get(ids)
        if layout is None:
            layout = self._layouts[ids] = self._new_layout(parameters)
        if parameters and buffer.dtype != parameters[0].dtype:  # a bucket has one type
            raise NotImplementedError(
                f"gtopk: the gradient of '{self._places[ids[0]].name}' is reduced as "
                f"{buffer.dtype}, its parameter is {parameters[0].dtype}: DDP's mixed_precision is "
                "not there yet under the hook"
            )
        for share in layout.shares:
            missing = self._exchanges[share.unit].missing
            if not share.names <= missing:
                name = min(share.names - missing)
                raise RuntimeError(
                    f"gtopk: the gradient of '{name}' came twice in one backward: every DDP needs "
                    "a SparseState of its own"
                )
        if self._may_drop:
            for parameter, gradient in zip(parameters, bucket.gradients(), strict=True):
                place = self._places[id(parameter)]
                exchange = self._exchanges[place.unit]
                exchange.into[place.name] = gradient
                exchange.versions[place.name] = version(parameter)
        return layout

    def _new_layout(self, parameters: Sequence[torch.Tensor]) -> Layout:
        for parameter in parameters:
            if id(parameter) not in self._places:
                raise ValueError(
                    f"gtopk: DDP reduces a parameter of shape {tuple(parameter.shape)} that its "
                    "SparseState does not know: make the state with gtopk.attach(ddp, density=…), "
                    "after requires_grad is set"
                )
        return layout_of(self._places[id(each)] for each in parameters)

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
            check_alike(state.description(), state.group)
            warn_of_dear_phases(state.config, state.units, state.step, state.group)
            self._compared = True
        state.choose_algorithms()
        scaler = state.scaler
        self._scale = 1.0 if scaler is None else scale_of(scaler)
        self._gate = None if scaler is None else _native.gate(len(self._names))
        self._last = []
        self._exchanges = [
            Exchange(i, names, self._scale, self._gate) for i, names in enumerate(self._names)
        ]
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
        self._keep_momenta()
        exchanges, self._exchanges = self._exchanges, []  # lets go of DDP's buckets
        for exchange in exchanges:
            if not exchange.delivered:
                continue
            begin = 0
            for parameter in self._state.units[exchange.index].large if self._may_drop else ():
                name, end = parameter.name, begin + parameter.numel
                mine = self._parameters[name]
                if has_dropped(mine, exchange.versions[name], exchange.into[name]):
                    self._put_back(exchange, name, mine.grad)
                    if exchange.note is not None:
                        exchange.note.forget(begin, end)
                begin = end
            exchange.let_go()
            if exchange.note is not None:
                self._last.append(exchange)

    def _put_back(self, exchange: Exchange, name: str, kept: torch.Tensor | None) -> None:
        """Undo a delivery that reached no .grad, in the sum over ranks.

        What was delivered goes to the first rank. kept: the .grad that took part on this rank and
        is still there for another backward; it leaves this rank's residual.
        """
        residual = self._state.residual(name)
        assert residual is not None
        assert self._backend is not None
        with torch.no_grad():
            if kept is not None:
                mine = kept.to(residual.dtype) / exchange.scale
                momenta = self._state.momenta
                residual.sub_(mine, alpha=momenta.forget(name, mine) if momenta else 1)
            if self._backend.rank() == 0:
                mean = exchange.into[name].to(residual.dtype)
                residual.add_(mean, alpha=self._backend.size() / exchange.scale)

    def _small_of(self, index: int) -> torch.Tensor:
        """Return the memory of a unit's small part, kept from backward to backward."""
        small = self._small[index]
        if small is None:
            unit = self._state.units[index]
            small = torch.empty(unit.dense_numel, dtype=ACCUMULATION[unit.dtype], device="cpu")
            self._small[index] = small
        return small

    def _note_of(self, exchange: Exchange, density: Density, algorithm: str) -> Note:
        """Return a note with room for the result, cleared."""
        assert self._backend is not None
        unit, config = self._state.units[exchange.index], self._state.config
        room = unit.selected_numel
        dense = algorithm == "dense"
        if density != "dense":
            room = config.most_delivered(room, self._backend.size(), density, algorithm)
        note = self._notes[exchange.index]
        if note is None or not note.fits(room, dense=dense):
            note = self._notes[exchange.index] = Note(room, unit.dtype, dense=dense)
        note.clear()
        return note

    def _start(self, exchange: Exchange) -> None:
        works: list[Work] = []
        try:
            self._submit(exchange, works)
        except Exception as error:
            exchange.error = error
            self._shut_gate()
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
        assert backend is not None
        exchange.spread_not_finite(backend.size())
        momentum = None
        if state.momenta:
            momentum = state.momenta.correct(exchange.index, exchange.large, exchange.small)
        elements = state.units[exchange.index].selected_numel
        if elements:
            density = state.density
            algorithm = state.unit_algorithm(exchange.index)
            # Dense from the first step on leaves nothing behind: no memory to sweep, or to take.
            none = algorithm == "dense" and state.unit_residual_is_zero(exchange.index)
            if backend.rank() == 0:
                exchange.note = self._note_of(exchange, density, algorithm)
            work = backend.sparse_all_reduce(
                exchange.large,
                None if none else state.unit_residual(exchange.index),
                0,
                algorithm,
                config.select,
                wire_named(config.wire),
                config.put_back,
                ReduceOp(ReduceOp.AVG),
                delivered=exchange.note.tensors() if exchange.note is not None else [],
                density=0.0 if density == "dense" else density,
                block=config.block,
                state=state.unit_selector_state(exchange.index),
                scale=exchange.scale,
                gate=exchange.gate,
                momentum=momentum,
            )
            works.append(work)
        if exchange.small.numel() or not works:
            options = AllreduceOptions()
            options.reduceOp = ReduceOp.AVG
            works.append(backend.allreduce([exchange.small], options))

    def _done(
        self, exchange: Exchange, done: torch.futures.Future[list[torch.Tensor]], first: bool
    ) -> None:
        """One of the unit's operations has ended; after the last, its buckets get the result."""
        error: Exception | None = None
        try:
            done.value()
        except Exception as failure:
            error = failure
        with self._changed:
            # Even if the other part fails: settle() puts back what this one delivered.
            if first and error is None:
                exchange.delivered = exchange.happened()
            exchange.error = exchange.error or error
            exchange.under_way -= 1
            if exchange.under_way:
                return
        if exchange.gate is not None and not exchange.large:
            exchange.gate.arrive(exchange.delivered)  # no operation of the unit's does
        if exchange.error is None:
            try:
                with torch.no_grad():
                    exchange.scatter()
            except Exception as failure:
                exchange.error = failure
        if exchange.error is not None and self._small[exchange.index] is exchange.small:
            # After an error the network may still hold it: the next backward gets another.
            self._small[exchange.index] = None
            self._notes[exchange.index] = None
        with self._changed:
            exchange.works = []
            exchange.ended = True
            self._changed.notify_all()
            complete = [each for each in exchange.buckets if each.ends(exchange.error)]
        for bucket in complete:
            bucket.complete()
