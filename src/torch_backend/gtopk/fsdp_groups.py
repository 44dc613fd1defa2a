"""FSDP2's groups of parameters, one per module, and what FSDP does with a group's results.

All of it is private in torch. shards.py and shard_overlap.py read from a group which parameters it
has and how they are laid out; this module finds out what FSDP does not tell a hook.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

FsdpGroup = Any


def sharded_modules(model: nn.Module) -> list[tuple[nn.Module, FsdpGroup]]:
    """Return the modules whose gradients FSDP2 reduces, last first, with FSDP's groups."""
    from torch.distributed.fsdp import FSDPModule

    found = []
    for name, module in model.named_modules():
        if not isinstance(module, FSDPModule):
            continue
        group = module._get_fsdp_state()._fsdp_param_group
        if group is None or not any(each.sharded_param.requires_grad for each in group.fsdp_params):
            continue
        if group._is_hsdp:
            raise ValueError(
                f"gtopk: module '{name}' is replicated by FSDP itself (a mesh of two dimensions), "
                "which reduces densely before any hook: give fully_shard the mesh of the shards "
                'alone, mesh["shard"], and fsdp_hook that of the replicas'
            )
        if group._all_reduce_hook is not None:
            raise RuntimeError(
                f"gtopk: module '{name}' has an all-reduce hook already: keep using the state that "
                "the earlier fsdp_hook returned"
            )
        found.append((module, group))
    if not found:
        raise ValueError(
            "gtopk: fsdp_hook takes a model that fully_shard was called on (FSDP2), with "
            f"parameters that require a gradient; given {type(model).__name__}"
        )
    return found[::-1]


def check_ended(states: Sequence[Any]) -> None:
    """Before a forward: raise RuntimeError if the last backward broke off."""
    if not torch.is_grad_enabled() or torch._C._current_graph_task_id() != -1:
        return
    contexts = [each._state_ctx for each in states]
    if any(getattr(each, "post_backward_final_callback_queued", False) for each in contexts):
        raise RuntimeError(
            "gtopk: the last backward raised, after which FSDP2 reduces no gradients, and replicas "
            "would diverge: create the model again, and load the last checkpoint"
        )


def divides(group: FsdpGroup, output: torch.Tensor) -> bool:
    """Whether FSDP divides these results when the hook has returned."""
    sums = getattr(group, "force_sum_reduction_for_comms", True)
    return bool(sums) or output.dtype not in (torch.float32, torch.bfloat16)


def has_hooks(group: FsdpGroup) -> bool:
    """Whether FSDP calls users' hooks with the results before the backward has ended."""
    return any(
        getattr(each.sharded_param, "_post_accumulate_grad_hooks", None)
        for each in group.fsdp_params
    )


def stays_a_view(group: FsdpGroup, output: torch.Tensor) -> bool:
    """Whether FSDP only lets each .grad be a view of these results."""
    return not any(
        each.sharded_param.dtype != output.dtype
        or each.sharded_param.grad is not None
        or each.offload_to_cpu
        for each in group.fsdp_params
    )
