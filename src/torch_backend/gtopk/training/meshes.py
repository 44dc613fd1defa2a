"""Reads device meshes of a sharded model: which ranks have which part, and which have copies.

These functions only read the meshes and send nothing.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def ranks_of(mesh: DeviceMesh) -> list[int]:
    """Return the global ranks in the mesh, in its order."""
    return mesh.mesh.flatten().tolist()


def shard_of(mesh: DeviceMesh) -> tuple[int, int]:
    """Return this rank's shard as (its number, the number of shards)."""
    ranks = ranks_of(mesh)
    return ranks.index(dist.get_rank()), len(ranks)


def groups_of(mesh: DeviceMesh) -> list[dist.ProcessGroup]:
    """Return the groups that hold the shards, one for each dimension of their mesh."""
    return [mesh.get_group(i) for i in range(mesh.ndim) if mesh.size(i) > 1]


def copies_of(parameter: Any, whole: DeviceMesh) -> int:
    """Return how many ranks of the shards' mesh hold the same elements of the parameter."""
    mesh: DeviceMesh = parameter.device_mesh
    sizes = zip(parameter.placements, mesh.shape, strict=True)
    copies = math.prod(size for placement, size in sizes if placement.is_replicate())
    return copies * whole.size() // mesh.size() if mesh.ndim < whole.ndim else copies
