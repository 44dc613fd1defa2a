"""One backward: gradients arrive piece by piece, and units are sent as soon as they are complete.

This module decides when things happen; SparseState decides what is selected, and holds the
residuals. A Source (source.py) hands over gradients, orders the units, and ends the backward.

Threads: gradients, and the end of the backward, arrive one after the other on the thread of the
backward. Operations end on the backend's threads, possibly several at once, which copy small
results back and complete the buckets' futures. Nothing blocks there, and no lock is held while a
future is completed, because its callbacks run user code.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import TYPE_CHECKING

import torch
from torch.distributed import AllreduceOptions, ReduceOp

from gtopk.core import _native
from gtopk.core.groups import backend_of
from gtopk.core.torch_internals import current_backward
from gtopk.diagnostics.advice import warn_of_dear_phases
from gtopk.diagnostics.diagnose import Diagnosis, Probe
from gtopk.exchange.clipping import Clipper
from gtopk.exchange.places import slots_of
from gtopk.exchange.unit_exchange import (
    ExactBucket,
    Exchange,
    Note,
    flat,
    without_traceback,
)
from gtopk.ops.sparse_all_reduce import ACCUMULATION
from gtopk.state.adaptive import stopwatch_of
from gtopk.state.fingerprint import check_alike
from gtopk.state.rates import scale_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch._C._distributed_c10d import Work

    from gtopk.core.backend import GtopkBackend
    from gtopk.exchange.places import Layout
    from gtopk.exchange.shards import Shards
    from gtopk.exchange.source import Source, State
    from gtopk.exchange.unit_exchange import Bucket
    from gtopk.ops.options import SparseOptions
    from gtopk.state.units import Unit


class Backward:
    """The units of one SparseState, from the arrival of a gradient to the arrival of its result."""

    def __init__(
        self, state: State, source: Source, units: Sequence[Unit], shards: Shards | None = None
    ) -> None:
        """Serve the units of `state`; memory is allocated when gradients arrive.

        shards: the ranks with which this rank decides about the whole model, if each holds only a
        shard of it.
        """
        self._state = state
        self.source = source
        self._shards = shards
        self.exchanges: list[Exchange] = []
        self.rearrange(units)
        self._changed = threading.Condition()  # guards what threads share; see _done()
        self._backend: GtopkBackend | None = None
        self.compared = False
        self.is_open = False
        """Whether gradients of a backward have arrived whose end has not been seen."""
        self._scale = 1.0  # the factor on this backward's gradients
        self.gate: _native.Gate | None = None
        """Where the units of this backward wait for one another."""
        self._diagnoses = False  # whether this backward is diagnosed
        self.exact_parts = 0
        """Gradients of a backward that belong to no unit."""
        self._exact_started: list[ExactBucket] = []  # the buckets started in this backward

    @property
    def backend(self) -> GtopkBackend:
        """The backend of the state's group, set by the first backward."""
        assert self._backend is not None
        return self._backend

    def rearrange(self, units: Sequence[Unit]) -> None:
        """Use these units, of the same parameters, from now on; call it between two backwards."""
        self._names = [frozenset(unit.names) for unit in units]
        self._small: list[torch.Tensor | None] = [None] * len(units)  # memory for small parts
        self._notes: list[Note | None] = [None] * len(units)
        self._last: list[Exchange] = []  # exchanges of the last backward that have a note
        self.stopwatch = stopwatch_of(units)
        self.source.arranged(slots_of(units))

    def compare(self) -> None:
        """Raise ValueError on every rank unless all ranks have the same state. Collective, once."""
        if not self.compared:
            state = self._state
            backend_of(state.group)
            check_alike(state.description(), state.group)
            warn_of_dear_phases(state.config, state.units, state.step, state.group)
            self.compared = True

    def begin(self) -> None:
        """Begin a backward; called when its first gradient has arrived."""
        self.settle()
        state = self._state
        backend = backend_of(state.group)
        if self._backend not in (None, backend):  # the ranks of a ReplicaGroup have changed
            self.compared = False
        self._backend = backend
        self.compare()
        state.choose()
        scaler, rates = state.scaler, state.rates
        self._scale = 1.0 if scaler is None else scale_of(scaler)
        parts = len(self._names) + self.exact_parts
        self.gate = None
        if scaler is not None:  # shards add one part, decided together
            self.gate = _native.gate(parts + (self._shards is not None))
        self._diagnoses = state.diagnostics.wanted(state.step)
        self._last = []
        self._clipper = Clipper(
            state.config, state.units, backend.size(), self._scale, parts, self._shards
        )
        self.exchanges = [
            Exchange(i, names, self._scale, self.gate, rates.of(names) if rates else None)
            for i, names in enumerate(self._names)
        ]
        if self._shards is not None:
            self._shards.begin()
        self.stopwatch.begin()
        self.is_open = True

    def take(self, layout: Layout, buffer: torch.Tensor, waiting: Bucket | None = None) -> None:
        """Start the units that are complete now that gradients have arrived in `buffer`."""
        complete = []
        with torch.no_grad():
            if self._scale != 1:
                buffer.div_(self._scale)
            pieces = buffer.split_with_sizes(layout.sizes)
            for part in layout.parts:
                exchange = self.exchanges[part.unit]
                exchange.take(part, pieces, waiting)
                if not exchange.missing:
                    if self._state.config.adaptive:
                        self.stopwatch.complete(part.unit)
                    complete.append(exchange)
            self.start(self.source.order(complete))

    def take_exact(self, gradient: torch.Tensor) -> ExactBucket:
        """Average a sparse COO gradient, which belongs to no unit, exactly."""
        bucket = ExactBucket(gradient, self.exchanges if self.gate is not None else [], self.gate)
        with torch.no_grad():
            self._start_clipped([], [bucket])
        return bucket

    def start(self, ready: list[Exchange]) -> None:
        """Start complete units, in this order, or hold them until the norm is known."""
        for exchange in ready:
            exchange.gather(self._small_of(exchange.index))
        self._start_clipped(ready, [])

    def _start_clipped(self, ready: list[Exchange], exact: list[ExactBucket]) -> None:
        starting, apart = self._clipper.clipped(ready, exact)
        for bucket in apart:
            self._exact_started.append(bucket)
            bucket.start(self.backend, self._changed)
        for exchange in starting:
            self._start(exchange)

    def start_held(self) -> None:
        """Start the units held for a norm; called at the end of a backward."""
        for exchange in self._clipper.held():
            self._start(exchange)

    def check_new(self, layout: Layout, why: str) -> None:
        """Raise RuntimeError if a gradient has arrived before."""
        for part in layout.parts:
            missing = self.exchanges[part.unit].missing
            if not part.names <= missing:
                name = min(part.names - missing)
                raise RuntimeError(f"gtopk: received two gradients for '{name}' {why}")

    def wait(self) -> None:
        """Wait until no operation of this backward is in flight."""
        started: list[Exchange | ExactBucket] = [*self.exchanges, *self._exact_started]
        for part in started:
            for work in list(part.works):
                with contextlib.suppress(Exception):
                    work.wait()
        with self._changed:
            self._changed.wait_for(lambda: all(each.ended for each in started))

    def count(self) -> None:
        """Count the step of a backward that has succeeded."""
        self.is_open = False
        self._state.step += 1
        self.stopwatch.end()

    def close(self) -> None:
        """Close a backward that has succeeded and whose results are in .grad."""
        self.count()
        self._keep_momenta()
        exchanges, self.exchanges, self._exact_started = self.exchanges, [], []
        self.source.on_close(broken=False)
        diagnosis = self._diagnosis(exchanges)
        for exchange in exchanges:
            if exchange.delivered:
                state = self._state
                state.kept.residuals.decay(exchange.index, state.config.error_decay)
            self.source.results_to(exchange)
            exchange.let_go()
            if exchange.delivered and exchange.note is not None:
                self._last.append(exchange)  # skip() reads it
        if diagnosis is not None:
            self.backend.diagnosis = diagnosis
            self._state.diagnostics.tell(diagnosis)  # last: the user's function may raise

    def raise_error(self) -> None:
        """Raise the first error of the exchanges, if any; the step then does not count."""
        error = next((each.error for each in self.exchanges if each.error), None)
        if error is not None:
            self.settle()
            raise error

    def _diagnosis(self, exchanges: Sequence[Exchange]) -> Diagnosis | None:
        """Measure the exchanges if this backward is to be diagnosed."""
        units = tuple(
            each.probe.diagnose(self._state.kept.residuals.of_unit(each.index))
            for each in exchanges
            if each.probe is not None and each.delivered
        )
        return Diagnosis(self._state.step - 1, units) if units else None

    def return_to_residual(self, exchange: Exchange, name: str, mean: torch.Tensor) -> None:
        """Return a result that reaches no .grad to the first rank's residual.

        mean: the parameter's result as delivered, the same on all ranks.
        """
        residual = self._state.kept.residuals.of_parameter(name)
        assert residual is not None
        if self.backend.rank() == 0:
            rate = exchange.rate(name) * self.backend.size() / exchange.scale
            flat(residual).add_(mean.to(residual.dtype).view(-1), alpha=rate)
        if exchange.note is not None:
            large = self._state.units[exchange.index].large
            at = next(i for i, each in enumerate(large) if each.name == name)
            begin = sum(each.numel for each in large[:at])
            exchange.note.forget(begin, begin + large[at].numel)

    def check_outside(self) -> None:
        """Raise RuntimeError during a backward, when exchanges in flight would be abandoned."""
        if self.is_open and current_backward() is not None:
            raise RuntimeError(
                "gtopk: during a backward, for example in one of its hooks, do not save, load, "
                "copy or skip() its SparseState, set the density, or call zero_grad() of a "
                "DistributedOptimizer: wait until the backward has ended"
            )
        self.source.check_outside()

    def settle(self) -> None:
        """End an aborted backward, so that nothing of it is in flight or lost.

        The values that its units delivered were not used, so they are returned to the residuals.
        """
        if not self.exchanges and not self._exact_started:
            return
        broken, self.is_open = self.is_open, False
        if broken:
            self.shut_gate()
        self.wait()
        self._keep_momenta()
        for exchange in self.exchanges:
            # Use the note because the gradients may have been overwritten meanwhile.
            if broken and exchange.delivered and exchange.note is not None:
                exchange.note.add_to(self._state.kept.residuals.of_unit(exchange.index))
        self.exchanges, self._exact_started = [], []  # releases the gradients
        self.source.on_close(broken=broken)

    def _keep_momenta(self) -> None:
        """Keep the momenta of units whose step happened; a gate makes that all units or none."""
        momenta = self._state.kept.momenta
        came = [each for each in self.exchanges if not each.missing]
        together = self.gate is None or all(each.delivered for each in came)
        for exchange in self.exchanges if momenta and together else ():
            if exchange.delivered:
                momenta.keep(exchange.index)

    def skip(self) -> None:
        """Return to the residuals what the last backward delivered. Idempotent."""
        self.settle()
        last, self._last = self._last, []
        for exchange in last:
            assert exchange.note is not None
            exchange.note.add_to(self._state.kept.residuals.of_unit(exchange.index))

    def shut_gate(self) -> None:
        """Shut the gate when nothing more will arrive; units that wait at it do not commit."""
        if self.gate is not None:
            self.gate.shut()

    def _small_of(self, index: int) -> torch.Tensor:
        """Return the memory of a unit's small part, reused from backward to backward."""
        small = self._small[index]
        if small is None:
            unit = self._state.units[index]
            dtype = ACCUMULATION[unit.dtype]
            small = torch.empty(unit.dense_numel, dtype=dtype, device=unit.device)
            self._small[index] = small
        return small

    def _note_of(self, exchange: Exchange, options: SparseOptions) -> Note:
        """Return a note that can hold the result, cleared."""
        unit, dense = self._state.units[exchange.index], options.traits.delivers_all
        most = options.most_delivered(unit.selected_numel, self.backend.size())
        note = self._notes[exchange.index]
        if note is None or not note.fits(most, dense=dense):
            note = self._notes[exchange.index] = Note(most, unit.dtype, unit.device, dense=dense)
        note.clear()
        return note

    def _start(self, exchange: Exchange) -> None:
        works: list[Work] = []
        backend = self.backend
        try:
            self._submit(exchange, works)
        except Exception as error:
            exchange.error = without_traceback(error)
            self.shut_gate()
            raise
        finally:
            exchange.works = works
            exchange.results = [backend.end_of(work) for work in works]
            exchange.under_way = len(works)
            exchange.ended = not works
            # This follows the bookkeeping because a callback of a finished Work runs here, at once.
            for i, result in enumerate(list(exchange.results)):
                result.add_done_callback(functools.partial(self._done, exchange, i == 0))

    def _submit(self, exchange: Exchange, works: list[Work]) -> None:
        """Start the unit's operations, the sparse one first; append each to `works` at once."""
        state, backend = self._state, self.backend
        exchange.to_updates(state.units[exchange.index])
        exchange.spread_not_finite(backend.size())
        momentum = None
        if state.kept.momenta:
            momentum = state.kept.momenta.correct(exchange.index, exchange.large, exchange.small)
        if self._shards is not None and exchange.gate is not None:
            self._shards.look_at(exchange, state, backend.size())
        elements = state.units[exchange.index].selected_numel
        if elements:
            options = state.unit_options(exchange.index)
            leaves_none = options.traits.empties_residual or state.config.error_decay == 0
            none = state.kept.residuals.is_zero(exchange.index) and leaves_none
            probe = self._probe(exchange, options)
            note = None
            if backend.rank() == 0 or probe is not None:
                note = self._note_of(exchange, options)
            if backend.rank() == 0:
                exchange.note = note
            delivered = [] if note is None else note.tensors()
            if probe is not None:
                probe.delivered = delivered
            work = backend.sparse_all_reduce(
                exchange.large,
                options,
                None if none else state.kept.residuals.of_unit(exchange.index),
                delivered=delivered,
                state=state.kept.selector_states.of_unit(exchange.index),
                scale=exchange.scale,
                gate=exchange.gate,
                momentum=momentum,
            )
            works.append(work)
            if probe is not None:
                works.append(backend.allreduce([probe.total], AllreduceOptions()))
        if exchange.small.numel() or not works:
            mean = AllreduceOptions()
            mean.reduceOp = ReduceOp.AVG  # type: ignore[assignment]  # as torch's own code does
            works.append(backend.allreduce([exchange.small], mean))

    def _probe(self, exchange: Exchange, options: SparseOptions) -> Probe | None:
        """Copy a unit's input if the backward is to be diagnosed."""
        if not self._diagnoses or options.traits.delivers_all:
            return None
        state, index = self._state, exchange.index
        exchange.probe = Probe(
            state.diagnostics,
            state.units[index],
            options,
            exchange.large,
            state.kept.residuals.of_unit(index),
            state.kept.selector_states.of_unit(index),
        )
        return exchange.probe

    def _done(
        self, exchange: Exchange, first: bool, done: torch.futures.Future[list[torch.Tensor]]
    ) -> None:
        """Record the end of one of the unit's operations; after the last, complete its buckets."""
        error: Exception | None = None
        try:
            done.value()
        except Exception as failure:
            error = failure
        with self._changed:
            # Record it even if the other part fails: settle() returns what this one delivered.
            if first and error is None:
                try:
                    exchange.delivered = exchange.happened()
                except Exception as failure:  # an error of the device
                    error = failure
            exchange.error = exchange.error or error
            exchange.under_way -= 1
            if exchange.under_way:
                return
        if exchange.gate is not None and not exchange.large:
            exchange.gate.arrive(exchange.delivered)  # no operation of the unit arrives there
        if exchange.error is None:
            try:
                with torch.no_grad():
                    exchange.scatter()
            except Exception as failure:
                exchange.error = failure
        if exchange.error is not None and self._small[exchange.index] is exchange.small:
            # After an error the network may still use the buffer, so the next backward gets a new
            # one.
            self._small[exchange.index] = None
            self._notes[exchange.index] = None
        with self._changed:
            exchange.works = []
            exchange.ended = exchange.finished = True
            self._changed.notify_all()
            complete = [each for each in exchange.buckets if each.ends(exchange.error)]
        for bucket in complete:
            bucket.complete()
