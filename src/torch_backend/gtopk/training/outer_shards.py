"""A replica with several ranks, each with its shards (DTensors), under an outer optimizer.

Each rank exchanges its own shards with the ranks of other replicas that hold the same shards. A
replica's ranks decide together about the replica as a whole, so that either all of its shards take
part in a round and move, or none does.
"""

from __future__ import annotations

import functools
import math
import sys
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import DistBackendError

from gtopk.core.groups import has_ranks_that_change, rank_in
from gtopk.core.groups import ranks_of as ranks_in
from gtopk.state.fingerprint import check_alike
from gtopk.training.meshes import copies_of, groups_of, ranks_of, shard_of
from gtopk.training.parameters import is_distributed, local_of
from gtopk.training.versions import Votes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from gtopk.state.fingerprint import Line

T = TypeVar("T")

_FAILED = -1
# A shard in a saved file is a dict with only this key.
_SHARD = "gtopk.shard"
_ALIKE = (
    "the ranks of this replica do not agree on their OuterOptimizers",
    "Make models and optimizers in the same way on every rank, and groups in which all ranks of a "
    "replica have the same rank",
)


class Replica:
    """The ranks that hold a replica's shards, including this one; often only this one.

    Methods that send something are collective over these ranks. A single rank sends nothing. Over a
    ReplicaGroup, each rank has its own group, and what happens in one group counts only once the
    replica's ranks have decided that it has happened in all.
    """

    def __init__(self, module: nn.Module, group: dist.ProcessGroup | None) -> None:
        """Find the replica's ranks. group: has a rank for each replica.

        Raise ValueError if parameters are not shards or copies, or the group has ranks of this
        replica; NotImplementedError for meshes that are not parts of one mesh.
        """
        self._module = module
        self._group = group
        named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        sharded = {name: each for name, each in named.items() if is_distributed(each)}
        for name, each in sharded.items():
            _check(name, each, group)
        self._mesh = _whole_mesh(sharded) if sharded else None
        self.groups = [] if self._mesh is None else groups_of(self._mesh)
        self.shard = None if self._mesh is None else shard_of(self._mesh)
        """(number, of how many); None for a replica without shards."""

    def all_succeed(self, do: Callable[[], T]) -> T:
        """Call `do`; raise its error where it fails, and on other ranks an error that names it.

        Collective, also over the replicas.
        """
        return self.votes().all_succeed(do) if self.groups else do()

    def votes(self) -> Votes:
        """Return the votes of all ranks of all replicas."""
        first = rank_in(self._group) == 0 and self.is_first
        return Votes([self._group, *self.groups], first=first)

    @property
    def is_first(self) -> bool:
        """Whether this rank takes the decisions that one rank takes for the replica."""
        return self.shard is None or self.shard[0] == 0

    def compare(self, settings: Sequence[Line], parameters: Mapping[str, torch.Tensor]) -> None:
        """Raise ValueError on every rank unless the replica's ranks agree.

        See all_succeed(). A ReplicaGroup has no ranks yet, so over one this compares only the
        replica's ranks.
        """
        lines = [*settings]
        votes = Votes(self.groups, first=False)
        if not has_ranks_that_change(self._group):
            place = f"{dist.get_rank(self._group)} of {dist.get_world_size(self._group)}"
            lines.append(("the rank in its group is", place))
            votes = self.votes()
        lines += [(f"'{name}' has", _described(each)) for name, each in parameters.items()]
        for each in self.groups:
            votes.all_succeed(functools.partial(check_alike, lines, each, _ALIKE))

    def least(self, value: int) -> int:
        """Return the least value of the replica's ranks."""
        if not self.groups:
            return value
        return int(self._reduced(torch.tensor([value]), dist.ReduceOp.MIN).item())

    def decide(self, do: Callable[[], int]) -> int:
        """Call `do`, which exchanges something with other replicas; return the least result.

        do: returns a number, 0 or more. If it fails on a rank, raise its error there, and
        DistBackendError on the replica's other ranks.
        """
        if not self.groups:
            return do()
        try:
            mine = do()
        except Exception:
            self.least(_FAILED)
            raise
        least = self.least(mine)
        if least == _FAILED:
            raise DistBackendError(
                "gtopk: the exchange of other shards of this replica failed, as their rank's error "
                "says: the shared parameters stay as they were"
            )
        return least

    def from_first(self, do: Callable[[], str]) -> str:
        """Call `do` on the replica's first rank; return its result on every rank.

        If it fails, raise its error there, and DistBackendError on the replica's other ranks.
        """
        if not self.groups:
            return do()
        try:
            return Votes(self.groups, first=self.is_first).from_first(do)
        except DistBackendError:
            raise
        except RuntimeError as error:
            raise DistBackendError(str(error)) from error

    def gathered(self, numbers: Sequence[int]) -> list[list[int]]:
        """Return the numbers of each of the replica's ranks, in the same order on all."""
        told = torch.tensor([numbers], dtype=torch.int64)
        for group in self.groups:
            assert self._mesh is not None
            told = told.to(self._mesh.device_type)
            parts = [torch.empty_like(told) for _ in range(dist.get_world_size(group))]
            dist.all_gather(parts, told, group=group)
            told = torch.cat(parts)
        found: list[list[int]] = told.tolist()
        return found

    def norm_of(self, pieces: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> float:
        """Return the norm of what the replica's ranks send, in float32; copies count once.

        pieces: parameters, each with the part of it that this rank sends. Plain parameters are
        assumed to be equal on all ranks.
        """
        assert self._mesh is not None
        square = 0.0
        for parameter, sent in pieces:
            alike = is_distributed(parameter)
            copies = copies_of(parameter, self._mesh) if alike else self._mesh.size()
            square += float(sent.double().square_().sum()) / copies
        total = self._reduced(torch.tensor([square], dtype=torch.float64), dist.ReduceOp.SUM)
        return float(torch.tensor(math.sqrt(total.item()), dtype=torch.float32))

    def reshard(self) -> None:
        """Let the next forward see the shards as they are now. Sends nothing."""
        reshard(self._module)

    def _reduced(self, told: torch.Tensor, op: Any) -> torch.Tensor:
        assert self._mesh is not None
        told = told.to(self._mesh.device_type)  # the groups may serve no other device
        for group in self.groups:
            dist.all_reduce(told, op, group=group)
        return told


def reshard(module: nn.Module) -> None:
    """Drop gathered parameters that FSDP keeps after some forwards, so that it gathers them anew.

    The module's parameters are then its shards.
    """
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")  # importing it takes a second
    for each in () if fsdp is None else module.modules():
        if isinstance(each, fsdp.FSDPModule):
            each.reshard()


def described(parameter: torch.Tensor) -> str:
    """Describe the part of a parameter that this rank has."""
    if not is_distributed(parameter):
        return _described(parameter)
    return f"{_described(parameter)}, {part_of(parameter)}"


def part_of(parameter: Any, rank: int | None = None) -> str:
    """Describe a rank's part of a DTensor, equally in all torch versions. None means this rank."""
    mesh: DeviceMesh = parameter.device_mesh
    place = (mesh.mesh == (dist.get_rank() if rank is None else rank)).nonzero()[0].tolist()
    parts = [
        f"part {at} of {size} along dimension {placement.dim}"
        for at, size, placement in zip(place, mesh.shape, parameter.placements, strict=True)
        if not placement.is_replicate()
    ]
    return " and ".join(parts) or "a copy"


def like(parameter: torch.Tensor, local: torch.Tensor | None) -> torch.Tensor:
    """Return a tensor distributed like `parameter`, made from this rank's part of it.

    local: None if the part has no elements.
    """
    if not is_distributed(parameter):
        assert local is not None
        return local
    from torch.distributed.tensor import DTensor

    shaped: Any = parameter
    return DTensor.from_local(
        torch.empty_like(local_of(parameter.detach())) if local is None else local,
        shaped.device_mesh,
        shaped.placements,
        run_check=False,
        shape=shaped.shape,
        stride=shaped.stride(),
    )


def to_save(values: Mapping[Any, Any], parameters: Mapping[Any, Any]) -> dict[Any, Any]:
    """Replace the DTensors among the values by this rank's parts, to be written to a file.

    parameters: how each value must be distributed. Raise NotImplementedError for a value that is
    distributed otherwise.
    """
    return {key: _to_save(key, each, parameters[key]) for key, each in values.items()}


def from_saved(values: Mapping[Any, Any], parameters: Mapping[Any, Any]) -> dict[Any, Any]:
    """Undo to_save(). Raise ValueError for parts that belong to other shards."""
    return {key: _from_saved(key, each, parameters[key]) for key, each in values.items()}


def _to_save(key: object, value: Any, parameter: Any) -> Any:
    if not isinstance(value, torch.Tensor) or not is_distributed(value):
        return value
    given: Any = value
    if (given.shape, given.placements) != (parameter.shape, parameter.placements):
        raise NotImplementedError(
            f"gtopk: '{key}' has shape {list(given.shape)} and {given.placements}, but its "
            f"parameter {list(parameter.shape)} and {parameter.placements}: gtopk.save of state "
            "that is not sharded like its parameter is not implemented. Save the model and "
            "outer.state_dict() on each rank"
        )
    return {_SHARD: local_of(value)}


def _from_saved(key: object, value: Any, parameter: Any) -> Any:
    if not isinstance(value, dict) or value.keys() != {_SHARD}:
        return value
    part = value[_SHARD]
    mine = local_of(parameter.detach()).shape
    if not is_distributed(parameter) or part.shape != mine:
        raise ValueError(
            f"gtopk: the saved shard of '{key}' has shape {list(part.shape)}, but this rank's has "
            f"{list(mine)}"
        )
    return like(parameter, part)


def _described(parameter: torch.Tensor) -> str:
    return f"shape {list(parameter.shape)} and type {parameter.dtype}"


def _check(name: str, parameter: Any, group: dist.ProcessGroup | None) -> None:
    """Raise ValueError unless the group's other ranks are outside a DTensor's mesh."""
    mesh: DeviceMesh = parameter.device_mesh
    if any(each.is_partial() for each in parameter.placements):
        raise ValueError(
            f"gtopk: the placements of '{name}' are {parameter.placements}, but an OuterOptimizer "
            "exchanges what is sharded or replicated: redistribute it"
        )
    if has_ranks_that_change(group):
        return  # the group has no ranks yet, and they have no global ranks
    within = set(ranks_in(group)) & {*ranks_of(mesh)} - {dist.get_rank()}
    for rank in sorted(within):
        here, there = part_of(parameter), part_of(parameter, rank)
        if here == there:
            raise ValueError(
                f"gtopk: '{name}' is already replicated over rank {rank} of the OuterOptimizer's "
                f"group (its placements are {parameter.placements} on {mesh}), so that each step "
                "averages gradients with that rank: give fully_shard the mesh of the shards "
                'alone, mesh["shard"], and the OuterOptimizer group=mesh["replicate"].get_group()'
            )
        raise ValueError(
            f"gtopk: rank {rank} is in the OuterOptimizer's group, but is of the same replica: it "
            f"holds {there} of '{name}', and this rank {here}. Give group= the ranks that hold the "
            'same shards, one of each replica, such as mesh["replicate"].get_group()'
        )


def _whole_mesh(sharded: Mapping[str, Any]) -> DeviceMesh:
    """Return the mesh of all of the replica's ranks."""
    meshes: list[DeviceMesh] = [each.device_mesh for each in sharded.values()]
    whole = max(meshes, key=lambda mesh: mesh.ndim)
    ranks = ranks_of(whole)
    for each in meshes:
        some = ranks_of(each)
        if some != ranks and (each.ndim == whole.ndim or not {*some} <= {*ranks}):
            raise NotImplementedError(
                "gtopk: an OuterOptimizer of parameters that are sharded over different ranks is "
                f"not implemented: {whole} and {each}"
            )
    return whole
