"""gtopk.fsdp_hook: shards inside a fast group by FSDP2, the sparse exchange between their replicas.

A unit is what one FSDP module reduces at once: this rank's shards of its parameters, one after the
other, each padded with zeros to the size of the largest shard.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from gtopk.collectives import check_tensor
from gtopk.config import Share
from gtopk.cuts import Cut
from gtopk.fingerprint import Line, check_alike
from gtopk.shard_overlap import FsdpGroup, ShardOverlap
from gtopk.state import SparseState
from gtopk.units import Parameter, Unit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gtopk.overlap import Overlap
    from gtopk.parameters import NamedParameters


def fsdp_hook(
    model: nn.Module,
    replicate_group: dist.ProcessGroup | DeviceMesh,
    density: Share = 0.001,
    **arguments: Any,
) -> SparseState:
    """Exchange the gradients of `model`, which FSDP2 shards, sparsely between replicas.

    Call ``fully_shard(model, mesh=mesh["shard"])`` with a one-dimensional mesh, then
    ``state = gtopk.fsdp_hook(model, mesh["replicate"], density=0.01)``. FSDP averages densely over
    the shard group; this averages each rank's shard over the replicas. The first replica's
    parameters and buffers are broadcast to the others at this call. Collective over the replicas.

    Each module passed to fully_shard is a unit, so there is no `unit` argument. An exchange
    overlaps the backward and ends with it, unless FSDP uses its result at once: when it reduces in
    float16 or calls hooks of the parameter. All replicas must use the same modules in a backward; a
    module whose parameters get no gradient at all is skipped. Where some of them do, the others'
    gradients count as zeros, on this replica alone, and their ``.grad`` has the result afterwards.

    Args:
        model: the root that was passed to fully_shard, on the CPU.
        replicate_group: the ranks that hold the same shard as this one, of backend gtopk; or a
            one-dimensional mesh.
        density: see SparseState.
        arguments: the other arguments of SparseState, except unit and group. clip_norm: a replica
            is what a rank is elsewhere: its gradient, the mean over its shards, is clipped to
            c / sqrt(replicas), by the norm of all shards together. scaler: one unit that is not
            finite, on any rank of any shard, and none happens; values whose sum over the replicas
            might overflow count as such. Both take an all-reduce of one number over the shards for
            each backward (with clip="unit" for each unit), scaler one over the replicas, too.

    Returns:
        The state. Residuals belong to this rank's shards: load ``state.state_dict()`` on the same
        rank. gtopk.save writes a folder for each shard; gtopk.load takes those of other shards or
        another number of replicas, too, and those of the same model under DDP.

    Raises:
        ValueError: the model is not sharded by FSDP2, or by native HSDP, which reduces densely
            before this can; the group contains ranks of this rank's shard group; shards whose
            states differ; and as SparseState.
        RuntimeError: `model` has such a hook already. Later, from a forward, after a backward that
            raised: FSDP2 itself does not recover from that.
        NotImplementedError: scaler= and clip_norm= where modules are sharded over different ranks,
            and clip_norm= where they are sharded in more than one dimension; and as SparseState.
    """
    for name in ("unit", "group"):
        if name in arguments:
            raise ValueError(f"gtopk: fsdp_hook takes no {name}=")
    group = (
        replicate_group if isinstance(replicate_group, dist.ProcessGroup) else _of(replicate_group)
    )
    modules = _sharded_modules(model)
    names = {id(each): name for name, each in model.named_parameters()}
    state = ShardState(modules, names, group, density, arguments)
    overlap = state.overlap
    assert isinstance(overlap, ShardOverlap)
    overlap.compare()
    for shards in state.shard_groups:
        # Units may differ where shards of a second dimension are uneven.
        lines = [line for line in state.description() if not line[0].startswith("unit ")]
        check_alike(lines, shards)
    for tensor in (*model.parameters(), *model.buffers()):
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        dist.broadcast(local.detach(), group=group, group_src=0)
    for index, (module, _) in enumerate(modules):
        module.set_all_reduce_hook(overlap.hook(index))
    states = [module._get_fsdp_state() for module, _ in modules]  # type: ignore[operator]
    model.register_forward_pre_hook(lambda _, __: _check_ended(states), prepend=True)
    return state


class ShardState(SparseState):
    """A SparseState of this rank's shards; its units are FSDP's."""

    def __init__(
        self,
        modules: Sequence[tuple[nn.Module, FsdpGroup]],
        names: Mapping[int, str],
        group: dist.ProcessGroup,
        density: Share,
        arguments: Mapping[str, Any],
    ) -> None:
        """See fsdp_hook(); names: the sharded parameters' names, by id."""
        self._modules = modules
        self._names = names
        super().__init__({}, density, group=group, **arguments)
        (self.shard, ranks) = _shard_of(modules[0][1])
        self.shard_groups = _groups_of(modules[0][1])
        self.cuts = self._cut()
        self._check_together()
        others = set(dist.get_process_group_ranks(group)) & ranks - {dist.get_rank()}
        if others:
            raise ValueError(
                f"gtopk: rank {min(others)} is in replicate_group and holds another shard of the "
                "same replica: give the ranks that hold the same shard"
            )

    def bind(
        self, named_parameters: NamedParameters, group: dist.ProcessGroup | None = None
    ) -> NoReturn:
        """Refuse: FSDP's modules cannot be passed in."""
        raise NotImplementedError(
            "gtopk: a copy of fsdp_hook's state cannot be bound: load its state_dict() into another"
        )

    def description(self) -> list[Line]:
        """See SparseState; shards must be alike in having a scaler."""
        scaled = "none" if self.scaler is None else "one"
        return [*super().description(), ("the loss has a scaler:", scaled)]

    def _check_together(self) -> None:
        """Raise NotImplementedError where modules cannot be clipped or scaled together."""
        meshes = [group.fsdp_params[0].sharded_param.device_mesh for _, group in self._modules]
        named = {"scaler": self.scaler, "clip_norm": self.config.clip_norm}
        asked = [name for name, value in named.items() if value is not None]
        if asked and any(each != meshes[0] for each in meshes):
            raise NotImplementedError(
                f"gtopk: fsdp_hook({asked[0]}=) with modules that are sharded over different ranks "
                f"is not implemented: {meshes[0]} and "
                f"{next(each for each in meshes if each != meshes[0])}"
            )
        if "clip_norm" in asked and meshes[0].ndim > 1:
            raise NotImplementedError(
                "gtopk: fsdp_hook(clip_norm=) with parameters that are sharded in "
                f"{meshes[0].ndim} dimensions is not implemented: {meshes[0]}"
            )

    def _cut(self) -> dict[str, Cut] | None:
        """Say how parameters are cut; None in more than one dimension."""
        assert self.shard is not None
        sharded = self._rated(())
        if any(each.device_mesh.ndim > 1 for each in sharded.values()):
            return None
        return {
            name: Cut(tuple(each.shape), each.placements[0].dim, *self.shard)
            for name, each in sharded.items()
        }

    def _arrange(self, named_parameters: NamedParameters) -> tuple[tuple[Unit, ...], Overlap]:
        groups = [group for _, group in self._modules]
        units = tuple(
            self._unit_of([each for each in group.fsdp_params if each.sharded_param.requires_grad])
            for group in groups
        )
        return units, ShardOverlap(self, units, groups, self._names, _groups_of(groups[0]))

    def _rated(self, named_parameters: NamedParameters) -> Mapping[str, Any]:
        return {
            self._names[id(each.sharded_param)]: each.sharded_param
            for _, group in self._modules
            for each in group.fsdp_params
            if each.sharded_param.requires_grad
        }

    def _unit_of(self, parameters: Sequence[Any]) -> Unit:
        described = []
        for each in parameters:
            name = self._names[id(each.sharded_param)]
            local = each.sharded_param.to_local().detach()
            check_tensor(local, f"parameter '{name}'", cpu=True)
            policy = each.mp_policy
            dtype = policy.reduce_dtype or policy.param_dtype or local.dtype
            numel = each.padded_sharded_param_size.numel()
            described.append(Parameter(name, (numel,), dtype))
        least = self.config.min_numel
        return Unit(
            described[0].dtype,
            tuple(each for each in described if each.numel >= least),
            tuple(each for each in described if each.numel < least),
        )


def _check_ended(states: Sequence[Any]) -> None:
    """Before a forward: raise RuntimeError if the last backward broke off."""
    if not torch.is_grad_enabled() or torch._C._current_graph_task_id() != -1:
        return
    contexts = [each._state_ctx for each in states]
    if any(getattr(each, "post_backward_final_callback_queued", False) for each in contexts):
        raise RuntimeError(
            "gtopk: the last backward raised, after which FSDP2 reduces no gradients, and replicas "
            "would drift apart: make the model anew, and load what was saved last"
        )


def _of(mesh: DeviceMesh) -> dist.ProcessGroup:
    if getattr(mesh, "ndim", None) != 1:
        raise ValueError(
            "gtopk: replicate_group must be a process group or a mesh of one dimension, given "
            f"{mesh!r:.100}"
        )
    return mesh.get_group()


def _sharded_modules(model: nn.Module) -> list[tuple[nn.Module, FsdpGroup]]:
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
                f"gtopk: module '{name}' has an all-reduce hook already: the state that fsdp_hook "
                "returned goes on, and its residuals with it"
            )
        found.append((module, group))
    if not found:
        raise ValueError(
            "gtopk: fsdp_hook takes a model that fully_shard was called on (FSDP2), with "
            f"parameters that require a gradient; given {type(model).__name__}"
        )
    return found[::-1]


def _shard_of(group: FsdpGroup) -> tuple[tuple[int, int], set[int]]:
    """Return this rank's shard as (number, of how many), and the ranks of all of them."""
    mesh = group.fsdp_params[0].sharded_param.device_mesh
    ranks = mesh.mesh.flatten().tolist()
    return (ranks.index(dist.get_rank()), len(ranks)), set(ranks)


def _groups_of(group: FsdpGroup) -> list[dist.ProcessGroup]:
    """Return the groups over which shards lie, one for each dimension of their mesh."""
    mesh = group.fsdp_params[0].sharded_param.device_mesh
    return [mesh.get_group(i) for i in range(mesh.ndim) if mesh.size(i) > 1]
