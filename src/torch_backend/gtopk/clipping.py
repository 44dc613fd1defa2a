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
    from collections.abc import Callable, Sequence

    from gtopk.exchange import ExactBucket, Exchange


def clip(
    exchanges: Sequence[Exchange],
    clip_norm: float,
    ranks: int,
    exact: Sequence[ExactBucket] = (),
    scale: float = 1.0,
    whole: Callable[[float], float] = float,
) -> None:
    """Scale the gradients of all of these, together, down to ``clip_norm / sqrt(ranks)``.

    The norm is that of all their elements, in double. One that is not finite clips nothing: such a
    step does not happen. exact: sparse COO gradients, still multiplied by `scale`. whole: makes of
    these gradients' norm that of a rank's, where other ranks hold the rest.
    """
    pieces = [piece for each in exchanges for piece in (*each.large, each.small) if piece.numel()]
    norms = [torch.linalg.vector_norm(piece, dtype=torch.float64).item() for piece in pieces]
    norms += [each.norm() / scale for each in exact]
    norm, most = whole(math.hypot(*norms)), clip_norm / math.sqrt(ranks)
    if not math.isfinite(norm) or norm <= most:
        return
    for piece in pieces:
        piece.mul_(most / norm)
    for each in exchanges:
        each.clipped = most / norm
    for apart in exact:
        apart.multiply(most / norm)
