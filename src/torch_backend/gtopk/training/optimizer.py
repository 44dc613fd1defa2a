"""gtopk.DistributedOptimizer: exchanges gradients before an optimizer's step, without DDP."""

from __future__ import annotations

import contextlib
import weakref
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from typing_extensions import Unpack

from gtopk.core.groups import meeting_place
from gtopk.core.tracing import untraced
from gtopk.ops.options import check_whole
from gtopk.state.config import OptimizerArguments, Share, shows
from gtopk.training.optimizer_backward import GradientSource
from gtopk.training.parameters import NamedParameters, pairs_of
from gtopk.training.sparse_state import SparseState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


class DistributedOptimizer(torch.optim.Optimizer):
    """An optimizer whose gradients are exchanged sparsely, as by ``gtopk.attach`` under DDP.

    ``optimizer = gtopk.DistributedOptimizer(SGD(model.parameters(), lr=0.1), model, density=0.01)``

    Collective: construct it with the same arguments on every rank. The ranks' states are compared;
    then rank 0's parameters are broadcast, and also its buffers if a module is passed as
    named_parameters.

    A gradient is complete when `backward_passes_per_step` backwards have reached it (they add up in
    ``.grad``). A unit is sent when it is complete and all units before it have been sent. The
    backward that completes the last gradient returns once all results have arrived. If some
    backward did not reach a parameter, step() or synchronize() exchanges its gradient as it is, or
    zeros if it has none. Its ``.grad`` is then the result, with zeros where nothing was delivered.
    If that can happen, call synchronize() before reading or clipping gradients. Backwards that
    follow before step() add to the results, and are exchanged together with them: at the next last
    pass, or else by step(). A parameter that no longer requires a gradient has no ``.grad``, and
    its residual is kept. step() raises ValueError for a gradient that was not exchanged because its
    parameter was frozen or absent when this optimizer was created.

    Everything else, including param_groups, state and defaults, comes from the wrapped optimizer.

    Args:
        optimizer: the optimizer to wrap; its parameters must all be among `named_parameters`.
        named_parameters: ``model.named_parameters()``, or the model. Parameters that are not in the
            optimizer are not exchanged.
        density: see SparseState.
        backward_passes_per_step: how many backwards reach each parameter before a step, 1 or more.
        group: a process group of backend gtopk; None is the default group.
        arguments: the other arguments of SparseState.

    Raises:
        ValueError: as SparseState; the ranks' states differ; `optimizer` has parameters that are
            not in named_parameters.
        NotImplementedError: as SparseState.
    """

    # With True, a fused optimizer would read the scale from itself, but no GradScaler puts it
    # there.
    _step_supports_amp_scaling = False

    @shows(OptimizerArguments)
    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: NamedParameters,
        density: Share | None = None,
        *,
        backward_passes_per_step: int = 1,
        group: dist.ProcessGroup | None = None,
        **arguments: Unpack[OptimizerArguments],
    ) -> None:
        """See the class."""
        passes = check_whole(backward_passes_per_step, "backward_passes_per_step", 1)
        self._optimizer = optimizer
        self._exchanged: set[int] = set()
        given = dict(pairs_of(named_parameters))
        parameters = _named(optimizer, given)
        rated = optimizer if arguments.get("accumulate") == "update" else None
        self.sparse_state = SparseState(
            parameters, density, group=group, optimizer=rated, **arguments
        )
        """The SparseState: residuals, step, density and skip()."""
        trained = {name: each for name, each in parameters.items() if each.requires_grad}
        self._source = GradientSource(self.sparse_state, trained, passes)
        self.sparse_state.backward = self._source.backward
        self._exchanged = {id(each) for each in trained.values()}
        self._synchronizes = True
        self._synchronized = 0  # the state's last step whose gradients step() has used
        self._source.backward.compare()
        buffers = named_parameters.buffers() if isinstance(named_parameters, nn.Module) else ()
        for each in (*given.values(), *buffers):
            dist.broadcast(each.detach(), group=group, group_src=0)
        self._source.listen()
        # State and source refer to each other, so without this, hooks would outlive the optimizer.
        weakref.finalize(self, self._source.stop).atexit = False

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The optimizer's groups. Code that reads gradients here (a GradScaler) sees results."""
        if self._is_due() and not self._source.in_backward:
            self.synchronize()
        return self._optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The optimizer's state."""
        return self._optimizer.state

    def __getattr__(self, name: str) -> Any:
        """Look the name up in the wrapped optimizer."""
        if name == "_optimizer":  # a copy has none
            raise AttributeError(name)
        return getattr(self._optimizer, name)

    def __repr__(self) -> str:
        """Name the wrapped optimizer."""
        return f"DistributedOptimizer({self._optimizer!r})"

    def __reduce__(self) -> Any:
        """Raise an error: a copied or pickled optimizer would lack the hooks."""
        raise TypeError("gtopk: a DistributedOptimizer cannot be copied: save its state_dict()")

    @untraced
    def synchronize(self) -> None:
        """Exchange the remaining gradients, and wait until every gradient has its result.

        Collective. Does nothing if the backward has already done so. Raises RuntimeError if another
        DistributedOptimizer has been made with the same parameters.
        """
        self._source.check_listening()
        if self._is_due() or self._synchronized == self.sparse_state.step:
            self._source.finish()

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Let step() leave gradients as they are: after synchronize(), or for a local step."""
        self._synchronizes = False
        try:
            yield
        finally:
            self._synchronizes = True

    @untraced
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Synchronize, then step.

        With a closure, the optimizer sees exchanged gradients after each call of it, and the mean
        of the ranks' losses instead of this rank's loss, so that a line search decides the same on
        all ranks. Raises RuntimeError if another DistributedOptimizer has been made with the same
        parameters.
        """
        self._source.check_listening()
        result: Any
        if closure is not None:
            result = self._optimizer.step(lambda: self._evaluate(closure))
        else:
            if self._synchronizes and not self._makes_state():
                self.synchronize()
            self._check_all_exchanged()
            result = self._optimizer.step()
        self._synchronized = self.sparse_state.step
        return result

    @untraced
    def zero_grad(self, set_to_none: bool = True) -> None:
        """See torch. Also discards a backward that raised, and the passes before it.

        Raises RuntimeError while gradients are in flight, and during a backward.
        """
        if self._source.under_way and not self._source.in_backward:
            raise RuntimeError(
                "gtopk: zero_grad() was called while gradients are in flight: call step() or "
                "synchronize() first"
            )
        self.sparse_state.backward.check_outside()
        self._source.give_up()
        self._synchronized = self.sparse_state.step
        self._optimizer.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raise an error, because units are made from the initial parameters."""
        raise ValueError(
            "gtopk: a DistributedOptimizer takes no new parameters: add the group to the wrapped "
            "optimizer, then make another DistributedOptimizer with that optimizer"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state, and this rank's SparseState's under "gtopk"."""
        return {**self._optimizer.state_dict(), "gtopk": self.sparse_state.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load both states; a plain optimizer's state leaves the residuals unchanged."""
        if "gtopk" in state_dict:
            self.sparse_state.load_state_dict(state_dict["gtopk"])
        plain = {name: each for name, each in state_dict.items() if name != "gtopk"}
        self._optimizer.load_state_dict(plain)
        self._synchronized = self.sparse_state.step

    def _is_due(self) -> bool:
        """Return whether an exchange is under way, or local gradients have been added to results.

        The latter happens if a backward follows the last pass of a step. Its gradients are
        exchanged together with the results.
        """
        added = self._synchronized < self.sparse_state.step and self._source.has_passes
        return self._source.under_way or added

    def _makes_state(self) -> bool:
        """Return whether this is one of torch's steps that make an optimizer allocate its state.

        `torch.distributed.checkpoint.state_dict` sets zeros as gradients, without a backward, and
        learning rates of zero.
        """
        groups = self._optimizer.param_groups
        gradients = [each.grad for group in groups for each in group["params"]]
        return (
            not self._source.under_way
            and self._synchronized == self.sparse_state.step
            and all(float(group.get("lr", 1)) == 0 for group in groups)
            and all(each is not None and not each.any() for each in gradients)
        )

    def _check_all_exchanged(self) -> None:
        """Raise ValueError for a gradient that was not exchanged, as replicas would drift apart."""
        for number, group in enumerate(self._optimizer.param_groups):
            for each in group["params"]:
                if each.grad is not None and each.requires_grad and id(each) not in self._exchanged:
                    raise ValueError(
                        f"gtopk: a parameter of shape {tuple(each.shape)} in group {number} of the "
                        "optimizer has a gradient that was not exchanged: it was frozen, or was "
                        "not there, when the DistributedOptimizer was made; make another one, and "
                        "load this one's state_dict() with sparse_state.load_state_dict(…, "
                        "strict=False)"
                    )

    def _evaluate(self, closure: Callable[[], Any]) -> Any:
        with torch.enable_grad():
            loss = closure()
        if not self._synchronizes:
            return loss
        self.synchronize()
        self._check_all_exchanged()
        self._synchronized = self.sparse_state.step
        if loss is None:
            return None
        group = self.sparse_state.group
        device = loss.device if isinstance(loss, torch.Tensor) else meeting_place(group)
        mean = torch.as_tensor(loss, dtype=torch.float64, device=device).detach().clone()
        dist.all_reduce(mean, dist.ReduceOp.AVG, group=group)
        return mean.to(loss.dtype) if isinstance(loss, torch.Tensor) else mean.item()


def _named(
    optimizer: torch.optim.Optimizer, given: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return the given parameters that the optimizer has, in their order."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(
            f"gtopk: optimizer must be a torch.optim.Optimizer, given {type(optimizer).__name__}"
        )
    if isinstance(optimizer, DistributedOptimizer):
        raise ValueError("gtopk: optimizer must be a plain one, given a DistributedOptimizer")
    its = {id(each): each for group in optimizer.param_groups for each in group["params"]}
    found = {name: each for name, each in given.items() if id(each) in its}
    known = {id(each) for each in found.values()}
    missing = [each for number, each in its.items() if number not in known]
    if missing:
        raise ValueError(
            f"gtopk: {len(missing)} parameters of the optimizer are not among named_parameters, "
            f"the first of shape {tuple(missing[0].shape)}"
        )
    return found
