"""Exchanges gradients in .grad during the backward, for training without DDP.

This module handles parameters and their hooks; optimizer.py uses the results.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch

from gtopk.core.torch_internals import at_end_of_backward, current_backward, recomputes
from gtopk.core.tracing import untraced
from gtopk.exchange.backward import Backward
from gtopk.exchange.places import layout_of
from gtopk.exchange.source import Source
from gtopk.exchange.unit_exchange import flat
from gtopk.training.parameters import as_real

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.utils.hooks import RemovableHandle

    from gtopk.exchange.places import ParameterSlot
    from gtopk.exchange.source import State
    from gtopk.exchange.unit_exchange import Exchange


_listening: weakref.WeakSet[GradientSource] = weakref.WeakSet()


class GradientSource(Source):
    """Parameters whose gradients are exchanged in place, where autograd puts them.

    A parameter's gradient is complete after `passes` backwards have reached it; once all gradients
    are complete, the backward waits for the results. finish() exchanges incomplete gradients as
    they are, and zeros for missing gradients.
    """

    def __init__(self, state: State, parameters: Mapping[str, torch.Tensor], passes: int) -> None:
        """Take the parameters of `state`, by name."""
        self._state = state
        self._parameters = dict(parameters)
        self._passes = passes
        self._strides = {
            name: torch.empty_like(each, device="meta").stride()
            for name, each in self._parameters.items()
        }
        self._seen = dict.fromkeys(self._parameters, 0)
        self._complete: dict[int, Exchange] = {}  # not started: an earlier unit is incomplete
        self._started = 0  # number of units started
        self._backwards: set[int] = set()  # autograd's numbers of unfinished backwards
        self._handles: list[RemovableHandle] = []
        self._replaced = False
        self.backward = Backward(state, self, state.units)

    def arranged(self, slots: Mapping[str, ParameterSlot]) -> None:
        """See Source."""
        self._layouts = {name: layout_of([slots[name]]) for name in self._parameters}

    def listen(self) -> None:
        """Register hooks for the parameters' gradients; another source for any of them stops."""
        mine = {id(each) for each in self._parameters.values()}
        for other in list(_listening):
            if not mine.isdisjoint(map(id, other._parameters.values())):
                other.give_up()
                other.stop()
                other._replaced = True
        itself = weakref.ref(self)
        self._handles = [
            each.register_post_accumulate_grad_hook(lambda _, name=name: _arrive_at(itself, name))
            for name, each in self._parameters.items()
        ]
        _listening.add(self)

    def stop(self) -> None:
        """Remove the hooks. Idempotent."""
        _listening.discard(self)
        for each in self._handles:
            each.remove()
        self._handles = []

    def check_listening(self) -> None:
        """Raise RuntimeError if another source exchanges these gradients."""
        if self._replaced:
            raise RuntimeError(
                "gtopk: another DistributedOptimizer has been made with this one's parameters, and "
                "exchanges their gradients: call step() and synchronize() on that one. This one's "
                "state_dict() can still be read"
            )

    @property
    def under_way(self) -> bool:
        """Return whether gradients of an unfinished step have arrived."""
        return self.backward.is_open

    @property
    def has_passes(self) -> bool:
        """Return whether a backward has reached a gradient since the last step or its results."""
        return any(self._seen.values())

    @property
    def in_backward(self) -> bool:
        """Return whether a backward is running; one that raised counts as running."""
        return bool(self._backwards)

    @untraced
    def arrive(self, name: str) -> None:
        """Count one more backward that has reached the parameter's gradient."""
        backward = current_backward()
        assert backward is not None
        if backward not in self._backwards:  # more than one means a backward inside another
            self._backwards.add(backward)
            at_end_of_backward(lambda: self._end(backward))
        self._seen[name] += 1
        if self._seen[name] > self._passes:
            raise RuntimeError(_too_often(name, self._passes))
        if self._seen[name] == self._passes:
            self._exchange(name)

    def finish(self) -> None:
        """End the step: exchange also gradients that have not arrived, and wait. Collective.

        Raises the first error of its exchanges; the step then does not count. Raises RuntimeError
        if called in a backward.
        """
        if self.in_backward:
            raise RuntimeError(
                "gtopk: a backward is still running, or the last one raised: call zero_grad() first"
            )
        for name, seen in self._seen.items():
            if seen < self._passes:
                self._exchange(name)
        self.backward.wait()
        self.backward.raise_error()
        self.backward.close()

    def results_to(self, exchange: Exchange) -> None:
        """Remove .grad of frozen parameters, and return their results to the residual."""
        unit = self._state.units[exchange.index]
        for each in (*unit.large, *unit.small):
            parameter = self._parameters[each.name]
            if parameter.requires_grad:
                continue
            if exchange.delivered and each in unit.large:
                with torch.no_grad():
                    self.backward.return_to_residual(exchange, each.name, self._flat(each.name))
            parameter.grad = None

    def give_up(self) -> None:
        """Start over: drop gradients that have arrived, and return deliveries to the residuals."""
        self.backward.settle()
        self.on_close(broken=True)

    def check_outside(self) -> None:
        """Raise RuntimeError if gradients have arrived and nothing has failed."""
        if self.under_way and not self.in_backward:
            raise RuntimeError(
                "gtopk: gradients have arrived that have not been exchanged yet: call step() or "
                "synchronize() first"
            )

    def on_close(self, *, broken: bool) -> None:
        """Reset, so that the next gradient starts a new step."""
        self._seen = dict.fromkeys(self._parameters, 0)
        self._complete, self._started = {}, 0
        self._backwards.clear()

    @untraced
    def _end(self, backward: int) -> None:
        """Record that a backward has succeeded."""
        self._backwards.discard(backward)
        all_started = self._started == len(self.backward.exchanges)
        if self.under_way and all_started and not self._backwards:
            self.finish()

    def _exchange(self, name: str) -> None:
        try:
            if not self.under_way:
                self.backward.begin()
            layout = self._layouts[name]
            self.backward.check_new(layout, "in one step")
            self.backward.take(layout, self._flat(name))
        except BaseException:
            self.backward.shut_gate()
            raise

    def order(self, complete: list[Exchange]) -> list[Exchange]:
        """Start units by number, because gradients may arrive in another order on other ranks."""
        self._complete.update({each.index: each for each in complete})
        ready = []
        while self._started in self._complete:
            ready.append(self._complete.pop(self._started))
            self._started += 1
        return ready

    def _flat(self, name: str) -> torch.Tensor:
        """Return the gradient's elements in memory order, in the parameter's layout."""
        parameter = self._parameters[name]
        gradient = parameter.grad
        if gradient is None:
            gradient = parameter.grad = torch.zeros_like(parameter)
        if gradient.layout != torch.strided:
            raise NotImplementedError(
                f"gtopk: the gradient of '{name}' is sparse ({gradient.layout}), which is not "
                "implemented: make its module with sparse=False"
            )
        lazy = gradient.is_conj() or gradient.is_neg()  # properties of the tensor, not its memory
        if lazy or gradient.stride() != self._strides[name]:
            laid_out = torch.empty_like(parameter.detach())
            gradient = parameter.grad = laid_out.copy_(gradient.detach())
        return flat(as_real(gradient.detach()))


def _too_often(name: str, passes: int) -> str:
    if recomputes():
        return (
            f"gtopk: the gradient of '{name}' was computed more than once in a backward, because "
            "parts of the model that share the parameter are recomputed by torch.utils.checkpoint("
            "use_reentrant=True): set use_reentrant=False, or use gtopk.attach with "
            "DistributedDataParallel(model, static_graph=True)"
        )
    return (
        f"gtopk: the gradient of '{name}' was computed more than backward_passes_per_step={passes} "
        "times before step() or synchronize(), or again after a backward that raised, without "
        "zero_grad()"
    )


def _arrive_at(source: weakref.ref[GradientSource], name: str) -> None:
    alive = source()
    if alive is not None:
        alive.arrive(name)
