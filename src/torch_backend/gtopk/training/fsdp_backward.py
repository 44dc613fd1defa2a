"""Takes gradients of shards from the buffers of FSDP2's modules; each module is a unit.

FSDP calls a module's hook after its reduce-scatter and before it uses the result.
fsdp_internals.py finds out what FSDP does not tell the hook.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from gtopk.core.torch_internals import at_end_of_backward
from gtopk.core.tracing import untraced
from gtopk.exchange.backward import Backward
from gtopk.exchange.places import layout_of
from gtopk.exchange.shards import Shards
from gtopk.exchange.source import Source
from gtopk.ops.sparse_all_reduce import ACCUMULATION
from gtopk.state.fingerprint import check_alike
from gtopk.training.fsdp_internals import (
    check_in_backward,
    check_reduced,
    check_separable,
    defers,
    goes_on,
    has_hooks,
    known,
    reduction_of,
    stays_a_view,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from gtopk.exchange.places import ParameterSlot
    from gtopk.exchange.source import State
    from gtopk.exchange.unit_exchange import Exchange
    from gtopk.state.units import Unit
    from gtopk.training.fsdp_internals import FsdpGroup

_OTHER_MODULES = (
    "the replicas did not reduce the same modules in the same order",
    "Use the same modules on all replicas in every backward, or make the state with "
    "gtopk.fsdp_hook(…, find_unused_modules=True)",
)


class SeparateBuffers:
    """Gradients outside FSDP's buffers, which then hold zeros; one buffer for each unit.

    A buffer is as long as all of a module's gradients together and has the accumulation type, so
    neither sums nor results are rounded to the type in which FSDP reduces.
    """

    def __init__(self, sizes: Sequence[Mapping[str, int]], device: torch.device | str) -> None:
        """Serve units of these sizes: each parameter's elements, in the order of FSDP's buffer."""
        self._sizes = sizes
        self._device = device
        self._pending: dict[int, torch.Tensor] = {}
        self.exchanged: dict[int, torch.Tensor] = {}
        """By unit: what this backward exchanges, and, at its end, the results."""

    @property
    def pending(self) -> list[int]:
        """Return the units whose gradients wait for a backward that exchanges them."""
        return sorted(self._pending)

    def accumulate(
        self, index: int, output: torch.Tensor, names: Sequence[str], divisor: float
    ) -> None:
        """Add what FSDP has reduced, divided, to the unit's pending gradients; zero FSDP's buffer.

        names: the parameters that are in FSDP's buffer.
        """
        buffer = self._pending.get(index)
        if buffer is None:
            buffer = self._pending[index] = self._zeros(index, output.dtype)
        arrived = output.to(buffer.dtype)
        if divisor != 1:
            arrived.div_(divisor)
        parts = dict(self._split(index, buffer))
        sizes = [parts[name].numel() for name in names]
        for name, piece in zip(names, arrived.split(sizes), strict=True):
            parts[name].add_(piece)
        output.zero_()

    def begin_exchange(self, index: int, dtype: torch.dtype) -> torch.Tensor:
        """Return the unit's buffer to exchange: pending gradients, or zeros."""
        buffer = self._pending.pop(index, None)
        if buffer is None:
            buffer = self._zeros(index, dtype)
        self.exchanged[index] = buffer
        return buffer

    def forget(self) -> None:
        """Drop pending gradients of a backward that raised."""
        self._pending.clear()

    def results(self, index: int) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield each parameter's name and its part of the exchanged buffer."""
        return self._split(index, self.exchanged[index])

    def _zeros(self, index: int, dtype: torch.dtype) -> torch.Tensor:
        size = sum(self._sizes[index].values())
        return torch.zeros(size, dtype=ACCUMULATION[dtype], device=self._device)

    def _split(self, index: int, buffer: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        sizes = self._sizes[index]
        return zip(sizes, buffer.split([*sizes.values()]), strict=True)


class ShardSource(Source):
    """FSDP's modules, each of which is a unit.

    A unit is exchanged in FSDP's own buffer if each .grad becomes a view of it. If FSDP uses the
    buffer at once in another way, or has not reduced all of the module's parameters, the unit is
    exchanged in a separate buffer, FSDP gets zeros, and the results are added at the end of the
    backward.

    A module with set_requires_all_reduce(False) is not exchanged: what FSDP has reduced adds up in
    a separate buffer, until a backward in which the switch is on again.

    With finds_unused, replicas exchange all units in one order, whichever modules they used. It is
    the order in which modules arrived on the first replica in its first backward, so it is known
    once that has ended. Modules that have not arrived when a backward ends count as zeros.
    """

    merges = False  # each unit arrives separately

    def __init__(
        self,
        state: State,
        units: Sequence[Unit],
        groups: Sequence[FsdpGroup],
        names: Mapping[int, str],
        shards: Sequence[dist.ProcessGroup],
        copies: Mapping[str, int],
        *,
        finds_unused: bool = False,
    ) -> None:
        """Take the units and FSDP's parameter group of each.

        names: maps ids of sharded parameters to their names. shards: groups of ranks that hold the
        other shards, one for each dimension in which a parameter is sharded. copies: how many ranks
        of a replica hold the same shard of a parameter. finds_unused: whether replicas may use
        different modules.
        """
        self._state = state
        self._groups = groups
        self._parameters = [
            {names[id(each.sharded_param)]: each.sharded_param for each in group.fsdp_params}
            for group in groups
        ]
        self._orders = [
            [name for name in parameters if name in set(unit.names)]
            for unit, parameters in zip(units, self._parameters, strict=True)
        ]
        numels = {each.name: each.numel for unit in units for each in (*unit.large, *unit.small)}
        self._sizes = [{name: numels[name] for name in names} for names in self._orders]
        self._separate = SeparateBuffers(self._sizes, units[0].device)
        self._named = names
        self._in_backward = False  # a backward whose end has not been seen
        self._without: list[torch.nn.Parameter] = []  # had no .grad before zeros arrived
        self._came: list[int] = []
        self._usual: list[int] | None = None  # the order of first arrival, on all replicas
        self._finds_unused = finds_unused
        self._order: list[int] | None = None  # with finds_unused: start order on all replicas
        self._begun = 0  # number of units started in this backward
        self._shards = Shards(shards, copies, units[0].device)
        self.backward = Backward(state, self, units, self._shards)

    def arranged(self, slots: Mapping[str, ParameterSlot]) -> None:
        """See Source."""
        # FSDP's modules keep their numbers, even if the order of units has changed.
        self._layouts = [layout_of(slots[name] for name in names) for names in self._orders]

    def hook(self, index: int) -> Callable[[torch.Tensor], None]:
        """Return the hook that FSDP calls with the reduced gradients of its module."""

        def reduced(output: torch.Tensor) -> None:
            parameters, divisor = reduction_of(output)
            names = None
            if output.numel() < sum(self._sizes[index].values()):
                names = [self._named[id(each.sharded_param)] for each in known(parameters)]
            self.arrive(index, output, names, divisor, self._times(index))

        return reduced

    def _times(self, index: int) -> int:
        """Return the factor from a mean over the replicas to the result of FSDP's own replication.

        FSDP's own replication divides the sum over all ranks by the module's
        gradient_divide_factor, if it has one.
        """
        factor = self._groups[index].gradient_divide_factor
        return 1 if factor is None else dist.get_world_size(self._state.group)

    @untraced
    def arrive(
        self,
        index: int,
        output: torch.Tensor,
        names: Sequence[str] | None = None,
        divisor: float = 1.0,
        times: int = 1,
    ) -> None:
        """Average a unit's gradients, which FSDP has reduced over the shards into `output`.

        names: the parameters in `output`; None means all. Other parameters count as zeros, and
        their .grad still has the result afterwards. divisor: the number by which FSDP divides
        afterwards; NaN if unknown. times: the factor on the mean.
        """
        self._enter_backward()
        names = self._orders[index] if names is None else names
        if defers(self._groups[index]):
            self._defer(index, output, names, divisor, times)
            return
        if not self.backward.is_open:
            self.backward.begin()
            self._came, self._begun = [], 0
            self._separate.exchanged.clear()
        try:
            self._arrive(index, output, names, divisor, times)
        except BaseException:
            self.backward.shut_gate()
            raise

    def _enter_backward(self) -> None:
        """Register for the end of a backward when its first gradient arrives."""
        check_in_backward()
        if not self._in_backward:
            self._in_backward = True
            at_end_of_backward(self._end_backward)

    @untraced
    def _end_backward(self) -> None:
        """End the backward, unless only one inside it has ended and more gradients will arrive."""
        self._in_backward = False
        if goes_on(self._groups):
            return
        for parameter in self._without:
            parameter.grad = None
        self._without = []
        if self.backward.is_open:
            self._finish()

    def before_forward(self) -> None:
        """End a backward that raised, so that the next one gets none of its gradients."""
        if self._in_backward:
            self._in_backward, self._without = False, []
            self._separate.forget()
            self.backward.settle()

    def _defer(
        self, index: int, output: torch.Tensor, names: Sequence[str], divisor: float, times: int
    ) -> None:
        """Keep a unit's gradients for a later backward, in which FSDP will all-reduce them."""
        self._check(index, output, names)
        check_separable(self._groups[index], divisor, names[0], "set_requires_all_reduce(False)")
        # FSDP creates the .grad from zeros, where its own all-reduce would create none.
        self._without += [each for each in self._parameters[index].values() if each.grad is None]
        self._separate.accumulate(index, output, names, divisor / times)

    def _arrive(
        self, index: int, output: torch.Tensor, names: Sequence[str], divisor: float, times: int
    ) -> None:
        layout = self._layouts[index]
        self._came.append(index)
        self._check(index, output, names)
        again = "in one backward: a module was called twice, or a backward raised"
        self.backward.check_new(layout, again)
        group = self._groups[index]
        whole = len(names) == len(self._orders[index]) and index not in self._separate.pending
        what = ""
        if self.backward.gate is not None or self._waits_for_norm or self._finds_unused:
            what = "scaler=, clip_norm= and find_unused_modules="
        elif not whole:
            what = "parameters in it that got no gradient, or one of another backward"
        if what:
            check_separable(group, divisor, names[0], what)
        at_once = math.isnan(divisor) or has_hooks(group)
        if not at_once and not (whole and divisor == 1 and stays_a_view(group, output)):
            self._separate.accumulate(index, output, names, divisor / times)
            output = self._separate.begin_exchange(index, output.dtype)
        elif times != 1:
            output.mul_(times)
        self.backward.take(layout, output)
        if at_once:
            self.backward.wait()
            self._raise_error()

    def order(self, complete: list[Exchange]) -> list[Exchange]:
        """See Source. With finds_unused, units start in one order on all replicas."""
        if not self._finds_unused:
            return complete
        ready: list[Exchange] = []
        for index in (self._order or [])[self._begun :]:
            if self.backward.exchanges[index].missing:
                break
            ready.append(self.backward.exchanges[index])
        self._begun += len(ready)
        return ready

    def _fill_in(self) -> None:
        """Use zeros, at the end, for modules not used on this replica (finds_unused)."""
        unused = [each.index for each in self.backward.exchanges if each.missing]
        with torch.no_grad():
            for index in unused:
                self._take_separate(index)
            if self._order is None:
                order = torch.tensor([*self._came, *unused], device=self._device)
                dist.broadcast(order, group=self._state.group, group_src=0)
                self._order = order.tolist()
                self.backward.start(self.order([]))

    def _drop_what_nobody_used(self) -> None:
        """Return results of modules that no replica used to the residuals (finds_unused)."""
        used = torch.zeros(len(self.backward.exchanges), dtype=torch.uint8, device=self._device)
        used[self._came] = 1
        dist.all_reduce(used, dist.ReduceOp.MAX, group=self._state.group)
        for index in (1 - used).nonzero().flatten().tolist():
            for name, piece in self._separate.results(index):
                self._return(index, name, piece)
            del self._separate.exchanged[index]

    def _hand_out(self, index: int) -> None:
        """Add the results to the .grad that FSDP made from zeros, or write them if it made none."""
        for name, piece in self._separate.results(index):
            parameter = self._parameters[index][name]
            if not parameter.requires_grad:  # it was frozen meanwhile
                self._return(index, name, piece)
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            local = parameter.grad.to_local()
            local.add_(piece[: local.numel()].view(local.shape))

    def _return(self, index: int, name: str, piece: torch.Tensor) -> None:
        """Return a result that reaches no .grad to its parameter's residual, if there is one."""
        if not self.backward.exchanges[index].delivered:
            return
        if any(each.name == name for each in self._state.units[index].large):
            self.backward.return_to_residual(self.backward.exchanges[index], name, piece)

    def on_close(self, *, broken: bool) -> None:
        """See Source. Gradients pending when a backward raised are lost, like FSDP's own."""
        if broken:
            self._separate.forget()

    def _take_separate(self, index: int) -> None:
        """Exchange pending gradients of a module that FSDP has not reduced in this backward."""
        dtype = self._state.units[index].dtype
        self.backward.take(self._layouts[index], self._separate.begin_exchange(index, dtype))

    def _finish(self) -> None:
        """Finish the backward after everything has arrived."""
        for index in self._separate.pending:
            if self.backward.exchanges[index].missing and not defers(self._groups[index]):
                self._came.append(index)
                with torch.no_grad():
                    self._take_separate(index)
        if self._finds_unused:
            self._fill_in()
        self.backward.start_held()
        if self.backward.gate is not None:
            self._shards.agree(self.backward.gate, self.backward.exchanges, self._state.group)
        self.backward.wait()
        self._raise_error()
        with torch.no_grad():
            if self._finds_unused:
                self._drop_what_nobody_used()
            else:
                self._check_same_modules()
            for index in self._separate.exchanged:
                self._hand_out(index)
        self._separate.exchanged.clear()
        self.backward.close()

    def _check_same_modules(self) -> None:
        """Raise ValueError if another replica exchanged other modules. Collective.

        Nothing else distinguishes modules of the same size. If all modules arrived in the usual
        order on this replica, they did so on all replicas, because a replica that differs would
        call this instead of its next exchange.
        """
        if self._came == self._usual:
            return
        lines = [("a module was that of", f"'{self._orders[index][0]}'") for index in self._came]
        try:
            check_alike(lines, self._state.group, _OTHER_MODULES)
        except ValueError:
            self.backward.settle()
            raise
        self._usual = self._usual or self._came

    @property
    def _device(self) -> torch.device | str:
        """Return the device of the gradients; groups of shards may serve no other device."""
        return self._state.units[0].device

    @property
    def _waits_for_norm(self) -> bool:
        config = self._state.config
        return config.clip_norm is not None and config.clip == "model"

    def _raise_error(self) -> None:
        try:
            self.backward.raise_error()
        except Exception as error:
            # If modules differ, exchanges meet exchanges of other modules, or none at all.
            met = any(each in str(error) for each in ("ranks differ", "never entered"))
            if self._finds_unused or not met:
                raise
            raise type(error)(
                f"{error}. If replicas use different modules, make the state with "
                "gtopk.fsdp_hook(…, find_unused_modules=True)"
            ) from None

    def _check(self, index: int, output: torch.Tensor, names: Sequence[str]) -> None:
        unit, sizes = self._state.units[index], self._sizes[index]
        late = [
            name
            for name, each in self._parameters[index].items()
            if each.requires_grad and name not in sizes
        ]
        if late:
            raise ValueError(
                f"gtopk: '{late[0]}' requires a gradient, but did not when fsdp_hook was called: "
                "call fsdp_hook after requires_grad is set"
            )
        check_reduced(output, unit.names[0], sum(sizes[name] for name in names), unit.dtype)
