"""Local clipping: before anything is accumulated, gradients are scaled down to a norm.

Deep Gradient Compression (Lin et al., arXiv 1712.01887), section 3.2: each of P ranks clips its own
gradient at c / sqrt(P), so that the sum over ranks of independent gradients has about the norm that
clipping it at c would leave. Residuals hold clipped gradients, and are not clipped again.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gtopk.exchange.unit_exchange import ExactBucket, Exchange


def clip(
    exchanges: Sequence[Exchange],
    norm: float,
    clip_norm: float,
    ranks: int,
    exact: Sequence[ExactBucket] = (),
) -> None:
    """Scale the gradients of these exchanges, of norm `norm`, to ``clip_norm / sqrt(ranks)``.

    A smaller norm clips nothing; nor does one that is not finite, as such a step does not happen.
    exact: sparse COO gradients.
    """
    most = clip_norm / math.sqrt(ranks)
    if not math.isfinite(norm) or norm <= most:
        return
    for each in exchanges:
        for piece in (*each.large, each.small):
            piece.mul_(most / norm)
        each.clipped = most / norm
    for apart in exact:
        apart.multiply(most / norm)


def norm_of(pieces: Iterable[torch.Tensor]) -> float:
    """Return the norm of all elements of these tensors, in double."""
    norms = [torch.linalg.vector_norm(each, dtype=torch.float64) for each in pieces]
    return math.hypot(*(each.item() for each in norms))
