"""gtopk.fsdp_hook: FSDP2 shards inside a fast group, with a sparse exchange between replicas.

A unit consists of what one FSDP module reduces at once: this rank's shards of its parameters, one
after the other, each padded with zeros to the size of the largest shard.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from typing_extensions import Unpack

from gtopk.core.tracing import uncompiled
from gtopk.ops.sparse_all_reduce import ACCUMULATION, check_tensor
from gtopk.state.config import ShardArguments, Share, shows
from gtopk.state.fingerprint import Line, check_alike
from gtopk.state.reshard import Cut
from gtopk.state.units import Parameter, Unit
from gtopk.training.fsdp_backward import ShardSource
from gtopk.training.fsdp_internals import Sentry, sharded_modules
from gtopk.training.meshes import copies_of, groups_of, ranks_of, shard_of
from gtopk.training.sparse_state import SparseState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch.distributed.fsdp import FSDPModule

    from gtopk.exchange.backward import Backward
    from gtopk.training.fsdp_internals import FsdpGroup
    from gtopk.training.parameters import NamedParameters


@shows(ShardArguments)
def fsdp_hook(
    model: nn.Module,
    replicate_group: dist.ProcessGroup | DeviceMesh,
    density: Share | None = None,
    *,
    find_unused_modules: bool = False,
    **arguments: Unpack[ShardArguments],
) -> SparseState:
    """Exchange the gradients of `model`, which FSDP2 shards, sparsely between replicas.

    Call ``fully_shard(model, mesh=mesh["shard"])`` with a one-dimensional mesh, then
    ``state = gtopk.fsdp_hook(model, mesh["replicate"], density=0.01)``. FSDP averages densely over
    the shard group; the hook averages each rank's shard over the replicas. The call broadcasts the
    first replica's parameters and buffers to the others. Collective over the replicas.

    Each module passed to fully_shard is a unit, so there is no `unit` argument. Exchanges overlap
    the backward and end with it, unless hooks of a parameter need a result at once. A module that
    no replica uses in a backward is skipped. If only some replicas use a module, that is an error
    unless find_unused_modules is set. If only some of a module's parameters get a gradient, the
    others count as zeros, on this replica only, and their ``.grad`` has the result afterwards.

    The switches of FSDP's modules mean what they do under its own replication (HSDP). With
    ``set_requires_all_reduce(False)``, gradients are only reduced over the shards, and add up until
    a backward with the switch on exchanges the sum, which is one step. With
    ``set_gradient_divide_factor(f)``, a gradient is the sum over all ranks, divided by f.

    Under tensor parallelism (parallelize_module applied before fully_shard) each rank exchanges its
    own shards with the same shards of the other replicas. Parameters that are whole on all of its
    ranks, such as a norm's weight, are averaged densely, because selections might differ.

    Args:
        model: the root that was passed to fully_shard.
        replicate_group: the ranks that hold the same shard as this one, as a process group of
            backend gtopk or a one-dimensional mesh.
        density: see SparseState.
        find_unused_modules: whether replicas may use different modules. A module that a replica
            does not use counts as zeros there, and its ``.grad`` is still the result. Replicas
            start exchanges in the order of the first backward, in which nothing overlaps; if a
            module is missing, later modules wait for the end of the backward. The option costs one
            small all-reduce per backward. If a replica uses no module at all, the others still time
            out.
        arguments: the other arguments of SparseState, except unit and group, where "ranks" means
            replicas. clip_norm: a replica's gradient, the mean over its shards, is clipped to c /
            sqrt(replicas), by the norm over all shards; elements that several ranks of a replica
            hold (tensor parallelism) count once. scaler: if one unit is not finite, on any rank of
            any shard, no unit happens; values whose sum over the replicas might overflow count as
            not finite. Both options take an all-reduce of one number over the shards per backward
            (with clip="unit" per unit), and scaler another one over the replicas.

    Returns:
        The state. Residuals belong to this rank's shards: load ``state.state_dict()`` on the same
        rank. gtopk.save writes a folder for each shard; gtopk.load also accepts checkpoints of
        other shards, of another number of replicas, and of the same model under DDP.

    Raises:
        ValueError: the model is not sharded by FSDP2, or FSDP2 also replicates it (HSDP,
            replicate()) and so reduces densely before this hook; the group contains ranks of this
            rank's shard group; the states of the shards differ; and as SparseState.
        RuntimeError: `model` already has an all-reduce hook. Later, from a forward after the hook
            was replaced, or after a backward that raised: FSDP2 recovers from that only since torch
            2.13, after ``model.reset_iter_state()``.
        NotImplementedError: scaler= and clip_norm= if modules are sharded over different ranks;
            and as SparseState. Later, if FSDP reduces outside a backward, like a pipeline's stage,
            or calls a parameter's hooks with gradients that are not exchanged yet.
    """
    for name in ("unit", "group"):
        if name in arguments:
            raise ValueError(f"gtopk: fsdp_hook does not take {name}=")
    group = (
        replicate_group if isinstance(replicate_group, dist.ProcessGroup) else _of(replicate_group)
    )
    model = uncompiled(model)
    modules = sharded_modules(model)
    names = {id(each): name for name, each in model.named_parameters()}
    state = ShardState(modules, names, group, density, arguments, find_unused_modules)
    state.backward.compare()
    for shards in state.shard_groups:
        # Units may differ if shards of a second dimension are uneven.
        lines = [line for line in state.description() if not line[0].startswith("unit ")]
        check_alike(lines, shards)
    for tensor in (*model.parameters(), *model.buffers()):
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        dist.broadcast(local.detach(), group=group, group_src=0)
    for index, (module, _) in enumerate(modules):
        cast("FSDPModule", module).set_all_reduce_hook(state.source.hook(index))
    model.register_forward_pre_hook(Sentry(modules, state.source.before_forward), prepend=True)
    return state


class ShardState(SparseState):
    """A SparseState of this rank's shards; its units are FSDP's."""

    def __init__(
        self,
        modules: Sequence[tuple[nn.Module, FsdpGroup]],
        names: Mapping[int, str],
        group: dist.ProcessGroup,
        density: Share | None,
        arguments: ShardArguments,
        finds_unused: bool,
    ) -> None:
        """See fsdp_hook(). names: maps ids of sharded parameters to their names."""
        self._modules = modules
        self._names = names
        self._finds_unused = finds_unused
        self._mesh = _whole_mesh(modules)
        super().__init__({}, density, group=group, **arguments)
        self.shard = shard_of(self._mesh)
        self.shard_groups = groups_of(self._mesh)
        self.cuts = self._cut()
        self._check_together()
        others = set(dist.get_process_group_ranks(group)) & {*ranks_of(self._mesh)}
        others -= {dist.get_rank()}
        if others:
            raise ValueError(
                f"gtopk: rank {min(others)} is in replicate_group, but holds another shard of the "
                "same replica: pass the group of the ranks that hold the same shard"
            )

    def bind(
        self,
        named_parameters: NamedParameters,
        group: dist.ProcessGroup | None = None,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> NoReturn:
        """Raise an error: FSDP's modules cannot be passed in."""
        raise NotImplementedError(
            "gtopk: a copy of fsdp_hook's state cannot be bound: load its state_dict() into "
            "another state"
        )

    def description(self) -> list[Line]:
        """See SparseState. Either all shards have a scaler or none has."""
        return [
            *super().description(),
            ("the loss has", "no scaler" if self.scaler is None else "a scaler"),
            ("find_unused_modules is", str(self._finds_unused)),
        ]

    def _check_together(self) -> None:
        """Raise NotImplementedError if modules cannot be clipped or scaled together."""
        named = {"scaler": self.scaler, "clip_norm": self.config.clip_norm}
        asked = [name for name, value in named.items() if value is not None]
        mine = ranks_of(self._mesh)
        for _, group in self._modules if asked else ():
            mesh = _widest(group)
            # Under tensor parallelism, a module that is left whole is sharded over a part of the
            # ranks.
            if ranks_of(mesh) != mine and (mesh.ndim == self._mesh.ndim):
                raise NotImplementedError(
                    f"gtopk: fsdp_hook({asked[0]}=) with modules that are sharded over different "
                    f"ranks is not implemented: {self._mesh} and {mesh}"
                )

    def _cut(self) -> dict[str, Cut] | None:
        """Return how parameters are cut; None if one is cut in more than one dimension."""
        assert self.shard is not None
        sharded = self._rated(())
        if any(each.device_mesh.ndim > 1 for each in sharded.values()):
            return None
        return {
            name: Cut(tuple(each.shape), each.placements[0].dim, *self.shard)
            for name, each in sharded.items()
        }

    def _arrange(self, named_parameters: NamedParameters) -> tuple[tuple[Unit, ...], Backward]:
        groups = [group for _, group in self._modules]
        units = tuple(
            self._unit_of([each for each in group.fsdp_params if each.sharded_param.requires_grad])
            for group in groups
        )
        copies = {
            name: copies_of(each, self._mesh)
            for name, each in self._rated(named_parameters).items()
        }
        shards = groups_of(self._mesh)
        self.source = ShardSource(
            self, units, groups, self._names, shards, copies, finds_unused=self._finds_unused
        )
        return units, self.source.backward

    def _rated(self, named_parameters: NamedParameters) -> Mapping[str, Any]:
        return {
            self._names[id(each.sharded_param)]: each.sharded_param
            for _, group in self._modules
            for each in group.fsdp_params
            if each.sharded_param.requires_grad
        }

    def _unit_of(self, parameters: Sequence[Any]) -> Unit:
        described = []
        copied = set()  # parameters copied over the ranks of another dimension
        for each in parameters:
            name = self._names[id(each.sharded_param)]
            local = each.sharded_param.to_local().detach()
            check_tensor(local, f"parameter '{name}'")
            policy = each.mp_policy
            dtype = policy.reduce_dtype or policy.param_dtype or local.dtype
            if dtype != local.dtype:  # such a parameter is exchanged in a separate buffer
                dtype = ACCUMULATION[dtype]
            numel = each.padded_sharded_param_size.numel()
            described.append(Parameter(name, (numel,), dtype, local.device))
            if copies_of(each.sharded_param, self._mesh) > 1:
                copied.add(name)
        self.config.check_parameters(described)
        least = self.config.min_numel
        dense = {each.name for each in described if each.numel < least} | copied
        return Unit(
            described[0].dtype,
            tuple(each for each in described if each.name not in dense),
            tuple(each for each in described if each.name in dense),
        )


def _of(mesh: DeviceMesh) -> dist.ProcessGroup:
    if getattr(mesh, "ndim", None) != 1:
        raise ValueError(
            "gtopk: replicate_group must be a process group or a mesh of one dimension, given "
            f"{mesh!r:.100}"
        )
    return mesh.get_group()


def _widest(group: FsdpGroup) -> DeviceMesh:
    """Return the mesh with the most dimensions over which a parameter of the module is sharded."""
    meshes: list[DeviceMesh] = [each.sharded_param.device_mesh for each in group.fsdp_params]
    return max(meshes, key=lambda mesh: mesh.ndim)


def _whole_mesh(modules: Sequence[tuple[nn.Module, FsdpGroup]]) -> DeviceMesh:
    """Return the mesh of all shards; under tensor parallelism some modules lack a dimension."""
    return max((_widest(group) for _, group in modules), key=lambda mesh: mesh.ndim)
