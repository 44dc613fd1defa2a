"""Reads FSDP2's parameter groups, one per module, and what FSDP does with their results.

All of it is private in torch. fsdp.py and fsdp_backward.py read from a group which parameters it
has and how they are laid out; this module finds out what FSDP does not tell a hook.
"""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any, cast

import torch

from gtopk.core._native import check_torch
from gtopk.core.torch_internals import current_backward
from gtopk.ops.sparse_all_reduce import ACCUMULATION

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

check_torch(__name__, (2, 11), (2, 15))

FsdpGroup = Any


def sharded_modules(model: nn.Module) -> list[tuple[nn.Module, FsdpGroup]]:
    """Return the modules whose gradients FSDP2 reduces, last first, with FSDP's groups."""
    from torch.distributed.fsdp import FSDPModule

    found: list[tuple[nn.Module, FsdpGroup]] = []
    for name, module in model.named_modules():
        if not isinstance(module, FSDPModule):
            continue
        group = _group_of(name, module)
        if group is None or not any(each.sharded_param.requires_grad for each in group.fsdp_params):
            continue
        if hasattr(group.mesh_info, "replicate_process_group"):
            raise ValueError(
                f"gtopk: module '{name}' is replicated by FSDP itself (a mesh of two dimensions, "
                "or replicate()), which reduces densely before any hook: give fully_shard the mesh "
                'of the shards alone, mesh["shard"], and fsdp_hook that of the replicas'
            )
        if group._all_reduce_hook is not None:
            hook = group._all_reduce_hook
            raise RuntimeError(
                f"gtopk: module '{name}' already has an all-reduce hook: keep using the state that "
                "the earlier fsdp_hook returned"
                if getattr(hook, "__module__", "").startswith("gtopk.")
                else f"gtopk: module '{name}' already has an all-reduce hook, {_name_of(hook)}, "
                "and FSDP2 calls only one: do not call set_all_reduce_hook()"
            )
        found.append((cast("nn.Module", module), group))
    if not found:
        raise ValueError(
            "gtopk: fsdp_hook takes a model that fully_shard was called on (FSDP2), with "
            f"parameters that require a gradient; given {type(model).__name__}"
        )
    return found[::-1]


def _group_of(name: str, module: Any) -> FsdpGroup | None:
    state = module._get_fsdp_state()
    if len(getattr(state, "_fsdp_param_groups", ())) > 1:  # since torch 2.12
        raise NotImplementedError(
            f"gtopk: the parameters of module '{name}' are sharded over several meshes "
            "(shard_placement_fn), for which FSDP2 has no all-reduce hook: call fully_shard on a "
            "module for each mesh"
        )
    return state._fsdp_param_group


def _name_of(hook: object) -> str:
    return getattr(hook, "__qualname__", type(hook).__name__)


class Sentry:
    """A forward pre-hook that checks FSDP's modules before each forward of the model."""

    def __init__(
        self, modules: Sequence[tuple[nn.Module, FsdpGroup]], passed: Callable[[], None]
    ) -> None:
        """Expect these modules to keep the hooks that they have now; call `passed` if they do."""
        self._passed = passed
        self._states = [module._get_fsdp_state() for module, _ in modules]  # type: ignore[operator]
        self._hooks = [(group, group._all_reduce_hook) for _, group in modules]

    def __call__(self, model: nn.Module, inputs: object) -> None:
        """Raise RuntimeError if the last backward was aborted, or if a hook was replaced."""
        if not torch.is_grad_enabled() or current_backward() is not None:
            return
        if any(_is_in_backward(each) for each in self._states):
            resets = "call reset_iter_state() on the model, or "
            raise RuntimeError(
                "gtopk: the last backward raised, after which FSDP2 reduces no gradients, and "
                f"replicas would diverge: {resets if hasattr(model, 'reset_iter_state') else ''}"
                "create the model again, and load the last checkpoint"
            )
        for group, hook in self._hooks:
            if group._all_reduce_hook is not hook:
                raise RuntimeError(
                    f"gtopk: the all-reduce hook of module '{group._module_fqn}' has been replaced "
                    f"by {_name_of(group._all_reduce_hook)} since fsdp_hook was called, so its "
                    "gradients would not be exchanged: do not call set_all_reduce_hook()"
                )
        self._passed()


def reduction_of(output: torch.Tensor) -> tuple[Sequence[Any] | None, float]:
    """Return FSDP's parameters and divisor for a result. Called by FSDP's hook.

    The parameters are the ones in the result. FSDP divides by the divisor after the hook has
    returned; NaN means that it is unknown. Both are local variables of the function that calls the
    hook.
    """
    variables = sys._getframe(2).f_locals
    divisor = variables.get("postdivide_factor", math.nan)
    sums = variables.get("force_sum_reduction_for_comms", True)
    if divisor is None or not (sums or output.dtype not in (torch.float32, torch.bfloat16)):
        divisor = 1.0
    return variables.get("fsdp_params"), divisor


def known(parameters: Sequence[Any] | None) -> Sequence[Any]:
    """Return the parameters of a result that lacks some of its module's."""
    if parameters is None:
        raise NotImplementedError(
            "gtopk: modules of which only some parameters get a gradient are not implemented for "
            "this version of torch"
        )
    return parameters


def check_reduced(output: torch.Tensor, name: str, numel: int, dtype: torch.dtype) -> None:
    """Raise an error unless FSDP's result has `numel` elements and is accumulated like `dtype`.

    name: one of the module's parameters, for the error.
    """
    if output.numel() != numel:
        raise NotImplementedError(
            f"gtopk: FSDP reduced {output.numel()} elements for the module of '{name}', whose "
            f"parameters with a gradient have {numel}: this version of torch lays them out in a "
            "way that gtopk does not know"
        )
    # FSDP's reduction type depends on its version; most have the same accumulation type.
    wanted = ACCUMULATION[dtype]
    if ACCUMULATION.get(output.dtype) != wanted:
        raise ValueError(
            f"gtopk: FSDP reduced the module of '{name}' as {output.dtype}, but its residuals are "
            f"{wanted}: call fsdp_hook after parameters are converted and their grad_dtype is set"
        )


def defers(group: FsdpGroup) -> bool:
    """Return whether FSDP's all-reduce waits for a later backward (set_requires_all_reduce)."""
    return not group.all_reduce_grads


def has_hooks(group: FsdpGroup) -> bool:
    """Return whether FSDP calls users' hooks with the results before the backward has ended."""
    return any(
        getattr(each.sharded_param, "_post_accumulate_grad_hooks", None)
        for each in group.fsdp_params
    )


def check_separable(group: FsdpGroup, divisor: float, name: str, what: str) -> None:
    """Raise NotImplementedError if FSDP, or a hook, needs the module's results at once.

    name: one of its parameters. what: the feature that delays results.
    """
    if math.isnan(divisor):
        why = "is divided by FSDP in a way that this version of torch does not reveal"
    elif has_hooks(group):
        why = "has hooks that run after a gradient is accumulated"
    else:
        return
    raise NotImplementedError(
        f"gtopk: the module of '{name}' {why}, which is not implemented together with {what}, as "
        "their results come later"
    )


def check_in_backward() -> None:
    """Raise NotImplementedError unless FSDP calls a hook in a backward, which has an end."""
    if current_backward() is None:
        raise NotImplementedError(
            "gtopk: FSDP reduces gradients outside of a backward, as in a stage of a pipeline or "
            "after set_manual_backward_finalization(True), which fsdp_hook does not support: use "
            "FSDP's own replication there (a mesh of two dimensions)"
        )


def goes_on(groups: Sequence[FsdpGroup]) -> bool:
    """Return whether the ended backward was inside FSDP's (re-entrant checkpointing).

    The root's gradients come after all such backwards. Raise NotImplementedError if it has none.
    """
    states = [group.modules[0]._get_fsdp_state() for group in groups]
    if not any(_is_in_backward(each) for each in states):
        return False
    if not any(each._is_root for each in states):
        raise NotImplementedError(
            "gtopk: FSDP2's modules are called within torch.utils.checkpoint(use_reentrant=True), "
            "and their root has no parameters of its own, so that fsdp_hook does not see the end "
            "of a backward: set use_reentrant=False, or checkpoint what is inside the modules"
        )
    return True


def _is_in_backward(state: Any) -> bool:
    return getattr(state._state_ctx, "post_backward_final_callback_queued", False)


def stays_a_view(group: FsdpGroup, output: torch.Tensor) -> bool:
    """Return whether FSDP only lets each .grad be a view of these results."""
    return not any(
        each.sharded_param.dtype != output.dtype
        or each.sharded_param.grad is not None
        or each.offload_to_cpu
        for each in group.fsdp_params
    )
