"""How P ranks' vectors become one mean, sequentially: what the backend does and what it may do.

An Exchange keeps the residuals of all ranks. Rows of a tensor (P, d) are ranks. Orders of sums and
selections are those of docs/algorithms.md, so that results equal those of real ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import torch
from codes import BLOCK, bytes_of, code

T = TypeVar("T")
Counted = tuple[torch.Tensor, torch.Tensor]  # sums, and how many ranks contributed to each
TREE_BYTES = 65_536  # a dense vector up to this size is summed along the tree
HEADER = 64  # bytes of a message of entries
MEAN_RATE = 0.55  # of a cosine that falls to a tenth, as a share of its peak


def tree(leaves: Sequence[T], merge: Callable[[int, T, T], T]) -> T:
    """The root. merge(lowest, left, right): lowest is the node's lowest rank."""
    folded = len(leaves) - (1 << (len(leaves).bit_length() - 1))
    level = [
        (2 * j, merge(2 * j, leaves[2 * j], leaves[2 * j + 1]))
        if j < folded
        else (j + folded, leaf)
        for j, leaf in enumerate([*leaves[:folded], *leaves[2 * folded :]])
    ]
    while len(level) > 1:
        pairs = zip(level[::2], level[1::2], strict=True)
        level = [(lowest, merge(lowest, left, right)) for (lowest, left), (_, right) in pairs]
    return level[0][1]


def dense_sum(rows: torch.Tensor) -> torch.Tensor:
    """As `dense` adds on one host: along the tree, or, of long vectors, in a ring."""
    ranks, d = rows.shape
    if d * rows.element_size() <= TREE_BYTES:
        return tree(list(rows), lambda _, left, right: left + right)
    total = torch.empty_like(rows[0])
    for chunk in range(ranks):
        part = slice(chunk * d // ranks, (chunk + 1) * d // ranks)
        total[part] = rows[(chunk + 1) % ranks, part]
        for step in range(2, ranks + 1):
            total[part] += rows[(chunk + step) % ranks, part]
    return total


def first(values: torch.Tensor, k: int) -> torch.Tensor:
    """A mask of the first k: |value| descending, then index ascending, and no zeros."""
    magnitudes = values.abs()
    least = magnitudes.topk(min(k, len(values)), sorted=False).values.min()
    mask = magnitudes > least
    if least > 0:
        mask[(magnitudes == least).nonzero().flatten()[: k - int(mask.sum())]] = True
    return mask


def first_of_blocks(values: torch.Tensor, k: int, block: int) -> torch.Tensor:
    """A mask of the first k of every block; fewer, in proportion, of a shorter last block."""
    whole = len(values) // block * block
    found = torch.zeros(len(values), dtype=torch.bool)
    rows = values[:whole].view(-1, block)
    found[:whole] = torch.zeros(rows.shape).scatter(1, rows.abs().topk(k).indices, 1).flatten() > 0
    if rest := len(values) - whole:
        found[whole:] = first(values[whole:], max(1, round(k * rest / block)))
    return found & (values != 0)


def list_bytes(entries: float, d: int, value_bytes: float = 4.0) -> float:
    """A message of entries at random places: the fewest bits for their indices, 1.5 % more."""
    share = min(max(entries / d, 1e-12), 1 - 1e-12)
    bits = -share * math.log2(share) - (1 - share) * math.log2(1 - share)
    return HEADER + entries * value_bytes + 1.015 * d * bits / 8


def dense_bytes(ranks: int, of_vector: float) -> float:
    """What a rank sends if every value goes to its owner once, and its sum to all."""
    return 2 * (ranks - 1) / ranks * of_vector


class Exchange:
    """The plain mean, uncompressed; subclasses compress."""

    warms_up: ClassVar[bool] = False
    """Whether the first steps of a training are dense."""

    def start(self, ranks: int, shapes: Sequence[torch.Size]) -> None:
        """Before the first call. shapes: of the parameters that the vector consists of."""
        self.ranks = ranks
        self.shapes = list(shapes)
        self.d = sum(shape.numel() for shape in shapes)
        self.residual = torch.zeros(ranks, self.d)
        self.bytes = 0.0
        """Sent by a rank in the last call, on average, as far as it can be predicted."""

    def dense(self, rows: torch.Tensor, rate: float) -> torch.Tensor:
        """A step of the warm-up: delivers the residuals as well."""
        self.bytes = dense_bytes(self.ranks, 4 * self.d)
        return dense_sum(rows) / self.ranks

    def mean(self, rows: torch.Tensor, rate: float) -> torch.Tensor:
        """The mean (d,) of rows (P, d). rate: the learning rate."""
        return self.dense(rows, rate)


@dataclass
class Coded(Exchange):
    """`dense` on a coded wire; without feedback what rounding loses is lost."""

    wire: str
    feedback: bool = True
    decay: float = 1.0
    """Of the residual, in each step."""

    def mean(self, rows: torch.Tensor, rate: float) -> torch.Tensor:
        """Codes each rank's acc, adds what was decoded in rank order, codes the sum."""
        acc = rows + self.decay * self.residual if self.feedback else rows
        sent = code(self.wire, acc)
        total = sent[0].clone()
        for row in sent[1:]:
            total += row
        result = code(self.wire, total[None])[0]
        self.bytes = dense_bytes(self.ranks, bytes_of(self.wire, self.d))
        if self.feedback:
            self.residual = acc - sent
            size = BLOCK[self.wire]
            blocks = -(-self.d // size)
            for owner in range(self.ranks):
                begin, end = (size * (at * blocks // self.ranks) for at in (owner, owner + 1))
                self.residual[owner, begin:end] += (total - result)[begin:end]
        return result / self.ranks


@dataclass
class TopK(Exchange):
    """The exact sum of all ranks' selections, and the base of what selects."""

    density: float
    block: int | None = None
    """Selects from each block of so many apart; None: from the whole."""
    divisor: str = "ranks"
    """ "ranks", or "contributors": as many as have sent that coordinate."""
    decay: float = 1.0
    """Of the residual, in each step."""
    momentum: float = 0.0
    """DGC's correction: the ranks' momenta are what is accumulated and sent."""
    update: bool = False
    """Accumulates the gradient times the learning rate."""
    wire: str | None = None
    """Of the ranks' selections."""
    layer_wise: bool = False
    """Selects the same share of each parameter."""
    falling: bool = False
    """The density falls with the learning rate; it is `density` at the rate's mean in a cosine."""

    warms_up: ClassVar[bool] = True

    def start(self, ranks: int, shapes: Sequence[torch.Size]) -> None:
        """Before the first call."""
        super().start(ranks, shapes)
        self.k = self.share_of(self.d)
        self.peak = 0.0
        self.velocity = torch.zeros(ranks, self.d) if self.momentum else None

    def dense(self, rows: torch.Tensor, rate: float) -> torch.Tensor:
        """Momentum goes on, the residual stays empty."""
        if self.velocity is not None:
            self.velocity = rows = self.momentum * self.velocity + rows
        return super().dense(rows, rate)

    def mean(self, rows: torch.Tensor, rate: float) -> torch.Tensor:
        """Accumulates, selects, reduces, and divides."""
        if self.velocity is not None:
            self.velocity = rows = self.momentum * self.velocity + rows
        if self.falling:
            self.peak = max(self.peak, rate)
            self.k = self.share_of(self.d, rate / self.peak / MEAN_RATE)
        scale = rate if self.update else 1.0
        acc = rows * scale if self.update else rows
        acc = acc + (self.residual if self.decay == 1.0 else self.decay * self.residual)
        chosen = torch.stack([self.select(row) for row in acc])
        sent = torch.where(chosen, acc, 0.0)
        if self.wire is not None:
            sent = self.rounded(sent, chosen)
        total, counts = self.reduce(acc, sent, chosen)
        if self.velocity is not None:  # what was delivered is masked in both
            self.velocity = torch.where(chosen & (total != 0), 0.0, self.velocity)
        return (
            total / (counts.clamp(min=1) if self.divisor == "contributors" else self.ranks) / scale
        )

    def share_of(self, elements: int, factor: float = 1.0) -> int:
        """How many are selected of so many."""
        return min(elements, max(1, math.floor(factor * self.density * elements + 0.5)))

    def select(self, row: torch.Tensor) -> torch.Tensor:
        """A mask."""
        if self.layer_wise:
            parts = row.split([shape.numel() for shape in self.shapes])
            return torch.cat([first(part, self.share_of(len(part))) for part in parts])
        if self.block is None:
            return first(row, self.k)
        return first_of_blocks(row, round(self.density * self.block), self.block)

    def rounded(self, sent: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """The selections as they are decoded; blocks are of consecutive entries."""
        for row, mask in zip(sent, chosen, strict=True):
            row[mask] = code(self.wire or "", row[mask][None])[0]
        return sent

    def reduce(
        self, acc: torch.Tensor, sent: torch.Tensor, chosen: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The sum and how many ranks contributed to each of its values; sets the residual."""
        total = tree(list(sent), lambda _, left, right: left + right)
        self.residual = torch.where(chosen, acc - sent, acc)
        self.bytes = self.tree_bytes([chosen.sum(1).double().mean().item()], chosen)
        return total, chosen.sum(0)

    def tree_bytes(self, lists: list[float], chosen: torch.Tensor) -> float:
        """By recursive doubling: rounds of unions, or of selections if a wire makes them fewer."""
        rounds = max(1, (self.ranks - 1).bit_length())
        value = 4.0 if self.wire is None else bytes_of(self.wire, 256) / 256
        own = total = list_bytes(lists[0], self.d, value)
        for level in range(1, rounds):
            unions = (
                chosen.unflatten(0, (-1, 2**level)).any(1) if self.ranks % 2**level == 0 else chosen
            )
            union = list_bytes(unions.sum(1).double().mean().item(), self.d)
            total += union if self.wire is None else min(union, 2**level * own)
        return total


@dataclass
class EF21(TopK):
    """Richtárik et al., arXiv 2106.05203: ranks send how their gradients differ from what is known.

    Every rank keeps its estimate g_i, and all keep the mean g of the estimates, which is the
    result. inertia: of EF21-SGDM (Fatkhullin et al., arXiv 2305.15155, η there), where v_i, the
    running mean of a rank's gradients, takes the place of its gradient; 1 is EF21 itself.
    """

    inertia: float = 1.0

    def start(self, ranks: int, shapes: Sequence[torch.Size]) -> None:
        """Before the first call."""
        super().start(ranks, shapes)
        self.smoothed: torch.Tensor | None = None
        self.estimates = torch.zeros(ranks, self.d)
        self.known = torch.zeros(self.d)

    def _smooth(self, rows: torch.Tensor) -> torch.Tensor:
        """The running mean; its first value is the first gradient."""
        before = rows if self.smoothed is None else self.smoothed
        self.smoothed = before + self.inertia * (rows - before)
        return self.smoothed

    def dense(self, rows: torch.Tensor, rate: float) -> torch.Tensor:
        """The estimates are what they estimate."""
        self.estimates = self._smooth(rows).clone()
        self.known = super().dense(self.estimates, rate)
        return self.known

    def mean(self, rows: torch.Tensor, rate: float) -> torch.Tensor:
        """Sends the largest of v_i - g_i."""
        self.residual = -self.estimates
        smoothed = self._smooth(rows)
        self.known = self.known + super().mean(smoothed, rate)
        self.estimates = smoothed - self.residual
        return self.known


@dataclass
class Exact(TopK):
    """The first k of that sum."""

    def reduce(
        self, acc: torch.Tensor, sent: torch.Tensor, chosen: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What is selected and not delivered stays with its owner."""
        total = tree(list(sent), lambda _, left, right: left + right)
        final = first(total, self.k)
        self.residual = torch.where(chosen & final, acc - sent, acc)
        rounds = max(1, (self.ranks - 1).bit_length())
        self.bytes = (rounds / 2 + 1) * list_bytes(self.k, self.d)
        return torch.where(final, total, 0.0), chosen.sum(0)


@dataclass
class GTopK(TopK):
    """gTop-k: nodes of the tree add two lists and keep the first k."""

    put_back: str = "own"

    def reduce(
        self, acc: torch.Tensor, sent: torch.Tensor, chosen: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Walks the tree; what a node drops may go to its lowest rank."""
        dropped: list[tuple[int, torch.Tensor]] = []

        def merge(lowest: int, left: Counted, right: Counted) -> Counted:
            union = left[0] + right[0]
            kept = first(union, self.k)
            dropped.append((lowest, torch.where(kept, 0.0, union)))
            return torch.where(kept, union, 0.0), torch.where(kept, left[1] + right[1], 0)

        total, counts = tree(list(zip(sent, chosen.int(), strict=True)), merge)
        final = total != 0
        merged = self.put_back == "merged"
        self.residual = torch.where(chosen if merged else chosen & final, acc - sent, acc)
        for lowest, values in dropped:
            self.residual[lowest] += values if merged else torch.where(final, values, 0.0)
        rounds = max(1, (self.ranks - 1).bit_length())
        self.bytes = rounds * list_bytes(self.k, self.d)
        return total, counts


@dataclass
class PowerSGD(Exchange):
    """Vogels et al., arXiv 1905.13727, with feedback and warm start; each matrix by itself."""

    rank: int

    warms_up: ClassVar[bool] = True

    def start(self, ranks: int, shapes: Sequence[torch.Size]) -> None:
        """Before the first call."""
        super().start(ranks, shapes)
        draws = torch.Generator().manual_seed(0)
        self.right = [
            torch.randn(shape[1:].numel(), self.rank, generator=draws) for shape in self.shapes
        ]

    def mean(self, rows: torch.Tensor, rate: float) -> torch.Tensor:
        """One step of the power method for the mean of each matrix."""
        acc = rows + self.residual
        found, values = [], 0
        parts = acc.split([shape.numel() for shape in self.shapes], dim=1)
        for i, (shape, part) in enumerate(zip(self.shapes, parts, strict=True)):
            height, width = shape[0], shape[1:].numel()
            if (height + width) * self.rank >= height * width:
                found.append(dense_sum(part) / self.ranks)
                values += height * width
                continue
            matrices = part.unflatten(1, (height, width))
            left = torch.linalg.qr((matrices @ self.right[i]).mean(0)).Q
            self.right[i] = (matrices.mT @ left).mean(0)
            found.append((left @ self.right[i].T).flatten())
            values += (height + width) * self.rank
        result = torch.cat(found)
        self.residual = acc - result
        self.bytes = dense_bytes(self.ranks, 4 * values)
        return result
