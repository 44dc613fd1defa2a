"""Takes gradients from DDP's buckets; each bucket waits for the units that it contains.

DDP knows nothing of units, so this module detects results that it drops, and aborted backwards.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch

from gtopk.core.groups import backend_of
from gtopk.core.torch_internals import at_end_of_backward, current_backward
from gtopk.core.tracing import untraced
from gtopk.exchange.backward import Backward
from gtopk.exchange.places import layout_of
from gtopk.exchange.source import Source
from gtopk.exchange.unit_exchange import Bucket, flat
from gtopk.training.ddp_internals import (
    check_group,
    check_join,
    check_options,
    ddps_around,
    has_dropped,
    may_drop,
    sparse_gradients,
    version,
    why_cast,
)
from gtopk.training.parameters import as_real

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from gtopk.exchange.places import Layout, ParameterSlot
    from gtopk.exchange.source import State
    from gtopk.exchange.unit_exchange import Exchange
    from gtopk.state.units import Unit


class BucketSource(Source):
    """The parameters of a DDP."""

    def __init__(
        self, state: State, units: Sequence[Unit], parameters: Mapping[str, torch.Tensor]
    ) -> None:
        """Serve the units of `state`, with their parameters by name."""
        self._state = state
        self._parameters = dict(parameters)  # held so that their ids stay valid
        self._ddps: list[weakref.ref[DistributedDataParallel]] = []
        self._may_drop = True
        self._exact_seen = 0  # sparse COO gradients in this backward
        self.backward = Backward(state, self, units)

    def serve(self, ddp: DistributedDataParallel) -> None:
        """Record that the hook of this DDP has the state, which saves searching for the DDP."""
        self._ddps = [weakref.ref(ddp)]

    def arranged(self, slots: Mapping[str, ParameterSlot]) -> None:
        """See Source."""
        self._slots = {id(p): slots[name] for name, p in self._parameters.items()}
        self._layouts: dict[tuple[int, ...], Layout] = {}  # key: ids of a bucket's parameters

    def arrive(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Take the gradients of a bucket; start every unit that they complete.

        Return a future of the bucket's averaged buffer, complete when all its units are done.
        """
        try:
            return self._arrive(bucket)
        except BaseException:
            self.backward.shut_gate()
            raise

    def _arrive(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        if bucket.index() == 0:
            self._find_ddp(bucket)
            self.backward.begin()
            self._exact_seen = 0
        if bucket.buffer().layout == torch.strided:
            layout = self._layout(bucket)
            waiting = Bucket(bucket.buffer(), len(layout.parts))
            self.backward.take(layout, bucket.buffer().view(-1), waiting)
            if not layout.parts:
                waiting.complete()
            future = waiting.future
        else:
            future = self._exact(bucket)
        if bucket.is_last():
            self._end()
        return future

    def _exact(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Average the bucket's only gradient, which is sparse COO, exactly over the ranks."""
        gradient, parameter = bucket.buffer(), bucket.parameters()[0]
        slot = self._slots.get(id(parameter))
        if slot is not None:
            raise ValueError(
                f"gtopk: the gradient of '{slot.name}' is sparse ({gradient.layout}), but its "
                "SparseState has the parameter: make the state with gtopk.attach(ddp, density=…), "
                "or leave the parameter out of the state"
            )
        self._exact_seen += 1
        if self._exact_seen > self.backward.exact_parts:  # it came from a DDP that was not found
            raise ValueError(
                f"gtopk: DDP reduces {self._exact_seen} sparse COO gradients, but only "
                f"{self.backward.exact_parts} of its modules have sparse=True: set it on all "
                "modules that make sparse gradients"
            )
        return self.backward.take_exact(gradient).future

    def _layout(self, bucket: dist.GradBucket) -> Layout:
        """Check the bucket; return its layout: which units' gradients it holds, and where."""
        buffer, parameters = bucket.buffer(), bucket.parameters()
        ids = tuple(map(id, parameters))
        layout = self._layouts.get(ids)
        if layout is None:
            layout = self._layouts[ids] = self._new_layout(parameters)
        # A bucket has one type. DDP passes complex numbers as pairs.
        if parameters and buffer.dtype != as_real(parameters[0].detach()).dtype:
            why = why_cast([ddp for each in self._ddps if (ddp := each()) is not None])
            raise NotImplementedError(
                f"gtopk: the gradient of '{self._slots[ids[0]].name}' is reduced as "
                f"{buffer.dtype}, but its parameter is {parameters[0].dtype}: {why}"
            )
        self.backward.check_new(layout, "in one backward: every DDP needs a SparseState of its own")
        if self._may_drop and not any(each.is_complex() for each in parameters):
            for parameter, gradient in zip(parameters, bucket.gradients(), strict=True):
                slot = self._slots[id(parameter)]
                exchange = self.backward.exchanges[slot.unit]
                exchange.into[slot.name] = gradient
                exchange.versions[slot.name] = version(parameter)
        return layout

    def _new_layout(self, parameters: Sequence[torch.Tensor]) -> Layout:
        for parameter in parameters:
            if id(parameter) not in self._slots:
                raise ValueError(
                    f"gtopk: DDP reduces a parameter of shape {tuple(parameter.shape)} that its "
                    "SparseState does not know: make the state with gtopk.attach(ddp, density=…), "
                    "after requires_grad is set"
                )
        return layout_of(self._slots[id(each)] for each in parameters)

    def _find_ddp(self, bucket: dist.GradBucket) -> None:
        # If one is gone, another DDP has replaced it.
        gone = any(each() is None for each in self._ddps)
        if gone or not self.backward.compared:
            ddps = [ddp for each in self._ddps if (ddp := each()) is not None]
            if not ddps or gone:
                ddps = ddps_around(self._state, bucket.parameters()[0])
            for each in ddps:
                check_options(each)
            backend_of(self._state.group)
            check_group(ddps, self._state.group)
            self._may_drop = may_drop(ddps)
            self.backward.exact_parts = max(map(sparse_gradients, ddps), default=0)
            self._ddps = [weakref.ref(each) for each in ddps]
        for reference in self._ddps:
            ddp = reference()
            if ddp is not None:
                check_join(ddp)

    def _end(self) -> None:
        """Check, after the last bucket, that all units were started; prepare the end."""
        missing = [name for each in self.backward.exchanges for name in sorted(each.missing)]
        if missing:
            raise ValueError(
                f"gtopk: DDP does not reduce {len(missing)} parameters of its SparseState: "
                f"{', '.join(missing[:5])}{', ...' if len(missing) > 5 else ''}. Make the state "
                "with gtopk.attach(ddp, density=…), after requires_grad is set"
            )
        if current_backward() is None:
            # Under DDP's join(), a rank without data calls the hook on behalf of the others, and
            # drops all results.
            self.backward.count()
            return
        # DDP waits for the futures and writes .grad in a callback of the backward, which it queues
        # after this one: a callback queued by this one runs after it.
        at_end_of_backward(lambda: at_end_of_backward(self._finish))

    @untraced
    def _finish(self) -> None:
        """Close a backward that has succeeded; DDP has written its gradients."""
        self.backward.close()

    def results_to(self, exchange: Exchange) -> None:
        """See Source. DDP drops the results of parameters that no rank used."""
        if not (exchange.delivered and self._may_drop):
            return
        for parameter in self._state.units[exchange.index].large:
            mine = self._parameters[parameter.name]
            into = exchange.into[parameter.name]
            if has_dropped(mine, exchange.versions[parameter.name], into):
                self._undo(exchange, parameter.name, mine.grad)

    def _undo(self, exchange: Exchange, name: str, kept: torch.Tensor | None) -> None:
        """Undo a delivery that reached no .grad, in the sum over ranks.

        The delivered result goes to the first rank's residual. kept: the .grad that took part on
        this rank and stays for another backward; it is subtracted from this rank's residual.
        """
        with torch.no_grad():
            if kept is not None:
                residual = self._state.kept.residuals.of_parameter(name)
                assert residual is not None
                mine = kept.to(residual.dtype)
                mine = mine / exchange.scale * exchange.clipped * exchange.rate(name)
                momenta = self._state.kept.momenta
                residual.sub_(mine, alpha=momenta.forget(name, mine) if momenta else 1)
            self.backward.return_to_residual(exchange, name, flat(exchange.into[name]))
