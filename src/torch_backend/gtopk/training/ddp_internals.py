"""Finds out what DistributedDataParallel does not tell its hook; much of it is private in torch.

A hook gets buckets, but does not learn who calls it. With find_unused_parameters, DDP does not
write the .grad of a parameter that no rank used, whatever the hook returned. A copy has no hook.
"""

from __future__ import annotations

import gc
import warnings
import weakref
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gtopk.core._native import check_torch
from gtopk.core.tracing import untraced

if TYPE_CHECKING:
    from collections.abc import Sequence

check_torch(__name__, (2, 11), (2, 15))

_known: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()


def note_ddp(ddp: DistributedDataParallel) -> None:
    """Let ddps_around() find the DDP even after gc.freeze(), and make copies of it warn.

    gc.freeze() hides objects from the collector. Idempotent.
    """
    _known.add(ddp)
    for key, hook in list(ddp._forward_pre_hooks.items()):
        if isinstance(hook, CopyNotice):
            del ddp._forward_pre_hooks[key]
    ddp.register_forward_pre_hook(CopyNotice())


class CopyNotice:
    """A forward pre-hook of a DDP with our hook: copies of it warn at the first backward.

    Copies (deepcopy, pickle, AveragedModel) have forward hooks and a list of communication hooks,
    but their reducer has none. Copies without a backward, such as moving averages, do not warn.
    """

    def __init__(self, is_copied: bool = False) -> None:
        """Watch a DDP. is_copied: whether this notice came with a copy."""
        self._is_copied = is_copied

    def __reduce__(self) -> tuple[type[CopyNotice], tuple[bool]]:
        """Mark the notice as copied when it is copied or pickled."""
        return CopyNotice, (True,)

    def __call__(self, ddp: DistributedDataParallel, inputs: object) -> None:
        """Run before each forward."""
        if self._is_copied and torch.is_grad_enabled():
            self._is_copied = False
            _warn_at_gradient(ddp)


@untraced
def _warn_at_gradient(ddp: DistributedDataParallel) -> None:
    if hook_of(ddp):
        return
    parameters = [each for each in ddp.module.parameters() if each.requires_grad]
    copied = weakref.ref(ddp)

    def warn(_: torch.Tensor) -> None:
        handle.remove()
        ddp = copied()
        if ddp is None or ddp in _known or dist.get_rank(ddp.process_group) != 0:
            return
        warnings.warn(
            "gtopk: a DistributedDataParallel that is trained here is a copy of one that "
            "gtopk.attach was called on. torch does not copy communication hooks, so the copy's "
            "gradients are sent densely: call gtopk.attach(copy, density=…) to send them sparsely, "
            "and load_state_dict() of its state to load the residuals of the original",
            stacklevel=2,
        )

    handle = torch.autograd.graph.register_multi_grad_hook(parameters, warn, mode="any")


def hook_of(ddp: DistributedDataParallel) -> str:
    """Return the name of the hook in DDP's reducer, or "". Never call it in a backward.

    DDP's _comm_hooks is no help: copies have it too, and built-in hooks are not in it. This
    function takes the reducer's lock, which the reducer holds while it calls a hook.
    """
    return str(ddp._get_ddp_logging_data().get("comm_hook", ""))


def ddps_around(state: object, parameter: torch.Tensor) -> list[DistributedDataParallel]:
    """Find the DDPs whose hook has `state`; if there are none, DDPs that reduce `parameter`.

    This looks at every object of the process and takes tens of milliseconds, so call it once.
    """
    found = [each for each in gc.get_objects() if issubclass(type(each), DistributedDataParallel)]
    found += [each for each in _known if not any(each is other for other in found)]
    hooked = [each for each in found if any(of is state for _, of in each._comm_hooks)]
    for each in hooked:
        note_ddp(each)
    return hooked or [
        each for each in found if any(of is parameter for of in each.module.parameters())
    ]


def check_group(ddps: Sequence[DistributedDataParallel], group: dist.ProcessGroup | None) -> None:
    """Raise ValueError if the DDPs reduce over ranks other than those of `group`."""
    ranks = dist.get_process_group_ranks(group)
    reduced = [dist.get_process_group_ranks(each.process_group) for each in ddps]
    if reduced and ranks not in reduced:
        raise ValueError(
            f"gtopk: DDP reduces over {_said(reduced[0])}, but its SparseState over "
            f"{_said(ranks)}: make the state with gtopk.attach(ddp, density=…), or pass the "
            "state the process group of DDP as group="
        )


def check_options(ddp: DistributedDataParallel) -> None:
    """Raise NotImplementedError for options with which DDP does not reduce by its hook alone."""
    if ddp.mixed_precision is not None:
        raise NotImplementedError(
            "gtopk: this DDP has mixed_precision=, whose own hook casts on an accelerator's "
            "streams, which is not implemented: make the DDP without it, and compute under "
            "torch.autocast"
        )
    if ddp._delay_all_reduce_params:
        raise NotImplementedError(
            "gtopk: this DDP has delay_all_reduce_named_params=, and averages those parameters "
            "without any hook, and without waiting for the result, so that replicas may differ, "
            "with any backend: make the DDP without that argument"
        )
    if any(hasattr(each, "_in_backward_optimizers") for each in ddp.module.parameters()):
        raise NotImplementedError(
            "gtopk: this DDP's parameters have optimizers that step in the backward "
            "(apply_optimizer_in_backward), which DDP runs in a communication hook of its own: "
            "make the DDP without them, and call the optimizer's step() after the backward"
        )
    if getattr(ddp, "_use_python_reducer", False):
        raise NotImplementedError(
            "gtopk: this DDP was made with torch._dynamo.config.optimize_ddp = 'python_reducer', "
            "which passes single gradients to hooks, not buckets: make the DDP without it"
        )


def check_join(ddp: DistributedDataParallel) -> None:
    """Raise NotImplementedError for a join() that divides by the ranks that still have inputs."""
    if ddp._join_config.enable and not getattr(ddp, "_divide_by_initial_world_size", True):
        raise NotImplementedError(
            "gtopk: join(divide_by_initial_world_size=False) is not implemented with the hook, "
            "whose results are means over all ranks, like those of torch's own hooks: leave the "
            "argument out"
        )


def check_free(ddp: DistributedDataParallel) -> None:
    """Raise RuntimeError if DDP already has a hook; it accepts only one in its lifetime."""
    hook = hook_of(ddp)
    if hook == "sparse_hook":
        raise RuntimeError(
            "gtopk: this DDP already has a communication hook, gtopk.sparse_hook: keep using the "
            "state that the earlier attach returned, or make another DDP"
        )
    if hook:
        fused = " (of _register_fused_optim)" if "hook_then_optimizer" in hook else ""
        raise RuntimeError(
            f"gtopk: this DDP already has a communication hook, {hook}{fused}, and takes only one: "
            "make the DDP without it"
        )
    ddp._comm_hooks = []  # a copy shares the original's list


def why_cast(ddps: Sequence[DistributedDataParallel]) -> str:
    """Explain why gradients have a type other than their parameters'."""
    hooks = [hook.__qualname__ for each in ddps for hook, _ in each._comm_hooks[-1:]]
    wrappers = [hook for hook in hooks if hook != "sparse_hook"]
    if wrappers:
        return (
            f"DDP's hook is {wrappers[0]}, which casts gradients for gtopk.sparse_hook: leave it "
            "out and call gtopk.attach(ddp, wire='bf16'), which rounds only what is sent"
        )
    return "convert parameters before DDP is made, and compute under torch.autocast"


def may_drop(ddps: Sequence[DistributedDataParallel]) -> bool:
    """Return whether DDP may drop results; an unknown DDP may."""
    return not ddps or any(each.find_unused_parameters or each.static_graph for each in ddps)


def with_sparse_gradients(module: nn.Module) -> set[int]:
    """Return the ids of parameters whose gradients DDP expects to be sparse COO.

    If several modules share a parameter, the first one decides.
    """
    sparse: dict[int, bool] = {}
    for each in module.modules():
        is_sparse = isinstance(each, (nn.Embedding, nn.EmbeddingBag)) and each.sparse
        for parameter in each.parameters(recurse=False):
            sparse.setdefault(id(parameter), is_sparse)
    return {each for each, is_sparse in sparse.items() if is_sparse}


def sparse_gradients(ddp: DistributedDataParallel) -> int:
    """Count the parameters whose gradients DDP reduces as sparse COO."""
    ids = with_sparse_gradients(ddp.module)
    named = ddp.module.named_parameters()
    left_out = set(ddp.parameters_to_ignore)
    return sum(id(p) in ids and p.requires_grad and name not in left_out for name, p in named)


def version(parameter: torch.Tensor) -> int | None:
    """Return how often .grad has been written; None if there is no .grad."""
    return None if parameter.grad is None else parameter.grad._version


def has_dropped(parameter: torch.Tensor, before: int | None, bucket: torch.Tensor) -> bool:
    """Return whether DDP did not write .grad in a finished backward.

    before: the version when the gradient arrived. bucket: the gradient's part of DDP's bucket. With
    gradient_as_bucket_view, .grad may be a view of it, and then holds what the hook returned.
    """
    gradient = parameter.grad
    if gradient is None:
        return True
    return gradient._version == before and gradient.data_ptr() != bucket.data_ptr()


def _said(ranks: Sequence[int]) -> str:
    more = ", ..." if len(ranks) > 8 else ""
    return f"ranks {', '.join(str(each) for each in ranks[:8])}{more}"
