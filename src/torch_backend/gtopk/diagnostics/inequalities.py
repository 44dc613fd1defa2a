"""The papers' inequalities, measured on one unit in one step. These are pure functions.

For a vector u of d elements, of which k are selected:

- Random-k leaves 1 - k/d of ``|u|^2``, in expectation; Top-k leaves no more (the contraction that
  convergence proofs require).
- Top-k leaves no more than (1 - k/d)^2, if u is bell-shaped: Shi et al., Understanding Top-k
  Sparsification in Distributed Deep Learning, arXiv 1911.08772, Theorem 1. It suffices that the
  squares of u, sorted and divided by the largest, form a convex curve that ends at zero, which then
  lies below its chord, the line from 1 to 0.
- gTop-k leaves no more of the sum of u over the ranks than Random-k would, delta <= 1:
  Shi et al., A Convergence Analysis of Distributed SGD with Communication-Efficient Gradient
  Sparsification, IJCAI 2019, Assumption 1; layer by layer: LAGS-SGD, arXiv 1911.08727,
  Assumption 1.

Sums are computed in double precision.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

BINS = 64
WIDEST = 8.0  # standard deviations on either side of zero


class OfRank(NamedTuple):
    """Figures of one rank's u. They are None where u is zero."""

    norm: float
    contraction: float | None
    """``|u - Top_k(u)|^2 / |u|^2``."""
    above_chord: float | None
    """The most by which the sorted squares exceed their chord; above 0, u is not bell-shaped."""
    selected: int | None
    """Entries that this rank selected; None if the algorithm does not select per rank."""
    selected_contraction: float | None
    """The share of ``|u|^2`` that these entries leave, as for `contraction`."""
    recall: float | None
    """The share of the entries of Top_k(u) that are among them."""
    histogram: list[int]
    """Histogram of u / s, where s^2 is the mean of u^2: 64 bins from -8 to 8, the outer open."""


class OfSum(NamedTuple):
    """Figures of the sum of u over the ranks. They are None where the sum is zero, or k = d."""

    sum_norm: float
    lost_norm: float
    """The norm of what was not delivered: ``|sum u - result|``."""
    delivered: int
    """Delivered entries that are not zero."""
    delivered_recall: float | None
    """The share of the entries of Top_k(sum u) that are among them."""
    delta: float | None
    """``|sum u - result|^2`` over (1 - k/d) ``|sum u|^2``, what Random-k would leave."""


def of_rank(u: torch.Tensor, k: int, selected: torch.Tensor | None) -> OfRank:
    """Measure a rank's u, one-dimensional and finite. selected: distinct indices."""
    d = u.numel()
    magnitudes, order = u.abs().sort(descending=True, stable=True)
    squares = magnitudes.double().square()
    total = squares.sum().item()
    sends = count = recall = above = None
    if selected is not None:
        count = selected.numel()
        recall = _share(order, magnitudes, k, selected)
        sent = u[selected].double().square().sum().item()
        sends = _over(max(0.0, total - sent), total)
    left = squares[k:].sum().item()
    histogram = [0] * BINS
    if total > 0:
        line = torch.arange(d, dtype=torch.float64, device=u.device).div_(d)  # chord = 1 - line
        above = line.add_(squares.div_(squares[0].item())).max().item() - 1
        deviation = (total / d) ** 0.5
        at = u.to(torch.float64, copy=True).div_(deviation).add_(WIDEST)
        at.mul_(BINS / (2 * WIDEST)).floor_().clamp_(0, BINS - 1)
        histogram = torch.bincount(at.long(), minlength=BINS).tolist()
    return OfRank(total**0.5, _over(left, total), above, count, sends, recall, histogram)


def of_sum(total: torch.Tensor, k: int, indices: torch.Tensor, values: torch.Tensor) -> OfSum:
    """Measure the sum of all ranks' u. indices, values: the delivered entries."""
    d = total.numel()
    delivered = indices[values != 0]
    rest = total.to(torch.float64, copy=True)
    square = rest.square().sum().item()
    rest[delivered] -= values[values != 0].double()
    lost = rest.square_().sum().item()
    magnitudes, order = total.abs().sort(descending=True, stable=True)
    recall = _share(order, magnitudes, k, delivered)
    delta = _over(lost, (1 - k / d) * square)
    return OfSum(square**0.5, lost**0.5, delivered.numel(), recall, delta)


def _share(
    order: torch.Tensor, magnitudes: torch.Tensor, k: int, found: torch.Tensor
) -> float | None:
    """Return the share of the first k nonzero elements, in the selection order, that was found."""
    first = min(k, int(torch.count_nonzero(magnitudes)))
    if not first:
        return None
    among = torch.zeros(order.numel(), dtype=torch.bool, device=order.device)
    among[order[:first]] = True
    return int(among[found].sum()) / first


def _over(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
