"""The rule of an outer optimizer, equation by equation, on tensors of one replica.

Every operation rounds once and nothing is fused, so that replicas on different processors, and
numpy, get the same bits. This module uses no ranks; docs/outer.md has the whole rule.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gtopk.training.outer_presets import Settings


def movement(shared: torch.Tensor, local: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return shared - local, in `local`: this replica's movement with the sign of a gradient.

    dtype: the parameters' type, to which shared parameters were rounded when they were taken over.
    """
    taken = shared if shared.dtype == dtype else shared.to(dtype).to(shared.dtype)
    return torch.sub(taken, local, out=local)


def with_error(moved: torch.Tensor, error: torch.Tensor | None, settings: Settings) -> torch.Tensor:
    """Return error_decay * error + scale * moved, in `moved`."""
    if settings.scale != 1:
        moved.mul_(settings.scale)
    if error is not None:
        moved.add_(error * settings.error_decay)
    return moved


def visible(wanted: torch.Tensor, shared: torch.Tensor) -> torch.Tensor:
    """Return the entries that change a shared parameter after rounding to bfloat16.

    Other entries are zero.
    """
    seen = (shared - wanted).bfloat16() != shared.bfloat16()
    return torch.where(seen, wanted, torch.zeros_like(wanted))


def error_left(wanted: torch.Tensor, sent: torch.Tensor, subtract: float) -> torch.Tensor:
    """Return wanted - subtract * sent, in `wanted`: the error, which later rounds have to send."""
    return wanted.sub_(sent if subtract == 1 else sent * subtract)


def norm_of(lists: Sequence[torch.Tensor]) -> float:
    """Return the norm of what a replica sends, rounded to float32; squares are added in double."""
    total = sum(float(each.double().square_().sum()) for each in lists)
    return float(torch.tensor(math.sqrt(total), dtype=torch.float32))


def clipped(sent: torch.Tensor, norm: float, median: float) -> torch.Tensor:
    """Return sent * median / norm, in `sent`, if its norm is above the median."""
    if norm <= median:
        return sent
    share = torch.tensor(median, dtype=sent.dtype) / torch.tensor(norm, dtype=sent.dtype)
    return sent.mul_(share.to(sent.device))


def mean_of(total: torch.Tensor, divisor: int) -> torch.Tensor:
    """Return total / divisor, in `total`."""
    # A GPU divides by a number by multiplying by its reciprocal; only a tensor is divided by
    # exactly.
    return total.div_(torch.full((), divisor, dtype=total.dtype, device=total.device))


def advance(
    shared: torch.Tensor,
    velocity: torch.Tensor | None,
    mean: torch.Tensor,
    settings: Settings,
    *,
    lr: float,
    decay: float,
) -> None:
    """Move the shared parameters by the mean of what replicas sent, in place.

    u = mean or its sign; v = momentum * v + u; d = u + momentum * v (Nesterov) or v; then shared
    becomes (1 - lr * decay) * shared - lr * d. Overwrites `mean`.
    """
    update = mean.sign_() if settings.sign else mean
    if velocity is not None:
        velocity.mul_(settings.momentum).add_(update)
        update = update.add_(velocity * settings.momentum) if settings.nesterov else velocity
    if decay:
        shared.mul_(1 - lr * decay)
    shared.sub_(update if lr == 1 else update * lr)


def mixed(local: torch.Tensor, shared: torch.Tensor, mix: float) -> torch.Tensor:
    """Return mix * local + (1 - mix) * shared, in `local`."""
    return local.mul_(mix).add_(shared * (1 - mix))
