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

from gtopk.collectives import ACCUMULATION, check_tensor
from gtopk.config import Share
from gtopk.overlap import Overlap
from gtopk.places import layout_of
from gtopk.state import SparseState
from gtopk.units import Parameter, Unit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gtopk.overlap import State
    from gtopk.parameters import NamedParameters
    from gtopk.places import Place

# FSDP2's group of a module's parameters, which is private in torch.
_Group = Any


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
    overlaps the backward and ends with it, unless FSDP uses its result at once: when it accumulates
    into an existing ``.grad``, casts (``MixedPrecisionPolicy``), offloads, or calls hooks of the
    parameter. All replicas must use the same modules in a backward; a module whose parameters get
    no gradient at all is skipped.

    Args:
        model: the root that was passed to fully_shard, on the CPU.
        replicate_group: the ranks that hold the same shard as this one, of backend gtopk; or a
            one-dimensional mesh.
        density: see SparseState.
        arguments: the other arguments of SparseState, except unit, group and scaler.

    Returns:
        The state. Residuals belong to this rank's shards: load ``state.state_dict()`` on the same
        rank; gtopk.save writes a folder for each shard.

    Raises:
        ValueError: the model is not sharded by FSDP2, or by native HSDP, which reduces densely
            before this can; the group contains ranks of this rank's shard group; and as
            SparseState.
        NotImplementedError: scaler= and clip_norm=; and as SparseState.
    """
    for name in ("unit", "group"):
        if name in arguments:
            raise ValueError(f"gtopk: fsdp_hook takes no {name}=")
    for name in ("scaler", "clip_norm"):  # which other shards have a say in
        if arguments.get(name) is not None:
            raise NotImplementedError(f"gtopk: fsdp_hook({name}=) is not there yet")
    group = (
        replicate_group if isinstance(replicate_group, dist.ProcessGroup) else _of(replicate_group)
    )
    modules = _sharded_modules(model)
    names = {id(each): name for name, each in model.named_parameters()}
    state = ShardState(modules, names, group, density, arguments)
    overlap = state.overlap
    assert isinstance(overlap, ShardOverlap)
    overlap.compare()
    for tensor in (*model.parameters(), *model.buffers()):
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        dist.broadcast(local.detach(), group=group, group_src=0)
    for index, (module, _) in enumerate(modules):
        module.set_all_reduce_hook(lambda output, index=index: overlap.arrive(index, output))
    return state


class ShardState(SparseState):
    """A SparseState of this rank's shards; its units are FSDP's."""

    def __init__(
        self,
        modules: Sequence[tuple[nn.Module, _Group]],
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

    def _arrange(self, named_parameters: NamedParameters) -> tuple[tuple[Unit, ...], Overlap]:
        units = tuple(
            self._unit_of([each for each in group.fsdp_params if each.sharded_param.requires_grad])
            for _, group in self._modules
        )
        return units, ShardOverlap(self, units, [group for _, group in self._modules])

    def _rated(self, named_parameters: NamedParameters) -> Mapping[str, torch.Tensor]:
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


class ShardOverlap(Overlap):
    """The units of FSDP's modules."""

    merges = False  # each arrives by itself

    def __init__(self, state: State, units: Sequence[Unit], groups: Sequence[_Group]) -> None:
        """Take the units, and the group of FSDP's that each is made of."""
        self._groups = groups
        self._orders = [
            _in_order(unit, group, state) for unit, group in zip(units, groups, strict=True)
        ]
        super().__init__(state, units)

    def _arranged(self, places: Mapping[str, Place]) -> None:
        # FSDP's modules keep their numbers, in whatever order units are in by now.
        self._layouts = [layout_of(places[name] for name in names) for names in self._orders]

    def arrive(self, index: int, output: torch.Tensor) -> None:
        """Average a unit's gradients, which FSDP has reduced over the shards into `output`."""
        if not self._open:
            self._begin()
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        layout = self._layouts[index]
        self._check(index, output)
        self._check_new(layout, "in one backward: a module was called twice, or a backward raised")
        self._take(layout, output)
        if self._is_read_at_once(index, output):
            self._wait()
            self._raise_error()

    def _finish(self) -> None:
        """The backward has ended well."""
        self._wait()
        self._raise_error()
        for exchange in self._close():
            self._remember(exchange)

    def _raise_error(self) -> None:
        error = next((each.error for each in self._exchanges if each.error), None)
        if error is not None:
            self.settle()
            raise error

    def _check(self, index: int, output: torch.Tensor) -> None:
        unit = self._state.units[index]
        numel = unit.selected_numel + unit.dense_numel
        wanted = ACCUMULATION[unit.dtype]
        if output.numel() != numel:
            raise NotImplementedError(
                f"gtopk: FSDP reduced {output.numel()} elements for the module of "
                f"'{unit.names[0]}', which has {numel}: parameters of one module that get no "
                "gradient while others do are not there yet"
            )
        # Which type FSDP reduces is its version's affair; residuals are the same for most.
        if ACCUMULATION.get(output.dtype) != wanted:
            raise NotImplementedError(
                f"gtopk: FSDP reduced the module of '{unit.names[0]}' as {output.dtype}, its "
                f"residuals are {wanted}: such a mixed precision is not there yet"
            )

    def _is_read_at_once(self, index: int, output: torch.Tensor) -> bool:
        """Whether FSDP does more with the result than to let each .grad be a view of it."""
        group = self._groups[index]
        return (
            output.dtype not in (torch.float32, torch.bfloat16)  # divided afterwards
            or getattr(group, "force_sum_reduction_for_comms", True)  # likewise
            or any(
                each.sharded_param.dtype != output.dtype
                or each.sharded_param.grad is not None
                or each.offload_to_cpu
                or getattr(each.sharded_param, "_post_accumulate_grad_hooks", None)
                for each in group.fsdp_params
            )
        )


def _in_order(unit: Unit, group: _Group, state: State) -> list[str]:
    """Return the unit's names in the order in which FSDP lays the shards."""
    assert isinstance(state, ShardState)
    known = set(unit.names)
    names = (state._names.get(id(each.sharded_param)) for each in group.fsdp_params)
    return [name for name in names if name in known]


def _of(mesh: DeviceMesh) -> dist.ProcessGroup:
    if getattr(mesh, "ndim", None) != 1:
        raise ValueError(
            "gtopk: replicate_group must be a process group or a mesh of one dimension, given "
            f"{mesh!r:.100}"
        )
    return mesh.get_group()


def _sharded_modules(model: nn.Module) -> list[tuple[nn.Module, _Group]]:
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
        found.append((module, group))
    if not found:
        raise ValueError(
            "gtopk: fsdp_hook takes a model that fully_shard was called on (FSDP2), with "
            f"parameters that require a gradient; given {type(model).__name__}"
        )
    return found[::-1]


def _shard_of(group: _Group) -> tuple[tuple[int, int], set[int]]:
    """Return this rank's shard as (number, of how many), and the ranks of all of them."""
    mesh = group.fsdp_params[0].sharded_param.device_mesh
    ranks = mesh.mesh.flatten().tolist()
    return (ranks.index(dist.get_rank()), len(ranks)), set(ranks)
