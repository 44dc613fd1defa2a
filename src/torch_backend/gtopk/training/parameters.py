"""Turns a user's named_parameters into the parameters that a SparseState covers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import nn

from gtopk.core.tracing import uncompiled
from gtopk.ops.sparse_all_reduce import check_tensor, is_sharded

NamedParameters = Iterable[tuple[str, torch.Tensor]] | Mapping[str, torch.Tensor] | nn.Module


def trained_parameters(
    named_parameters: NamedParameters, *, shards: bool = False
) -> dict[str, torch.Tensor]:
    """Return the parameters that require a gradient, by name, in registration order.

    A parameter with several names (tied weights) counts once, under its first, as in
    ``model.named_parameters()``. Raises ValueError for anything but named parameters, for
    parameters that cannot be exchanged, and if none is left. shards: whether DTensors can be
    exchanged.
    """
    found: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, parameter in pairs_of(named_parameters):
        if not parameter.requires_grad or id(parameter) in seen:
            continue
        if is_sharded(parameter) and not (shards and is_distributed(parameter)):
            raise ValueError(
                f"gtopk: parameter '{name}' is sharded by FSDP or tensor parallelism "
                f"({type(parameter).__name__}): its gradient is reduced in pieces. Use "
                "gtopk.fsdp_hook(model, replicate_group, density=…) or gtopk.OuterOptimizer "
                "between replicas of FSDP2's shards; without FSDP, DistributedDataParallel with "
                "gtopk.attach"
            )
        check_tensor(as_real(local_of(parameter.detach())), f"parameter '{name}'")
        if name in found:
            raise ValueError(f"gtopk: two parameters have the name '{name}'")
        found[name] = parameter
        seen.add(id(parameter))
    if not found:
        raise ValueError("gtopk: named_parameters holds no parameter that requires a gradient")
    return found


def as_real(tensor: torch.Tensor) -> torch.Tensor:
    """View complex numbers as pairs of real ones in a last dimension; return others unchanged."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def is_distributed(tensor: torch.Tensor) -> bool:
    """Return whether this is a DTensor."""
    return hasattr(tensor, "device_mesh")


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a DTensor, which may be empty; return other tensors unchanged."""
    return tensor.to_local() if is_distributed(tensor) else tensor  # type: ignore[attr-defined]


def pairs_of(given: NamedParameters) -> Iterable[tuple[str, torch.Tensor]]:
    """Return names and parameters; raise ValueError if `given` does not hold such pairs."""
    given = uncompiled(given)
    if isinstance(given, nn.parallel.DistributedDataParallel):
        raise ValueError(
            "gtopk: a SparseState takes the parameters of the model that DDP wraps; to make one "
            "for the DDP itself, call gtopk.attach(ddp, density=…)"
        )
    if isinstance(given, nn.Module):
        given = given.named_parameters()
    elif isinstance(given, Mapping):
        given = given.items()
    if isinstance(given, (str, torch.Tensor)) or not isinstance(given, Iterable):
        raise _not_pairs(given)
    for pair in given:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise _not_pairs(pair)
        name, parameter = pair
        if not isinstance(name, str) or not isinstance(parameter, torch.Tensor):
            raise _not_pairs(pair)
        yield name, parameter


def _not_pairs(given: object) -> ValueError:
    return ValueError(
        "gtopk: named_parameters must be pairs (name, parameter), as model.named_parameters() "
        f"gives them, or the model; given {_said(given)}"
    )


def _said(given: object) -> str:
    if isinstance(given, (tuple, list)):
        return f"({', '.join(type(each).__name__ for each in given[:3])})"
    return type(given).__name__
