"""Controls that select from the sum of all ranks: the exact first k, and SketchedSGD.

Rules and hashes are those of docs/algorithms.md, so that results equal those of real ranks.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from exchanges import TopK, dense_bytes, dense_sum, first
from scipy.sparse import csc_array

ROWS, COLUMNS, HEAVY = 5, 10, 8  # of a sketch; columns and what is fetched of it, over k
SENT = ROWS * COLUMNS + HEAVY  # values, over k
PRIME = (1 << 61) - 1


@dataclass
class TrueTopK(TopK):
    """The first k of the sum of all acc."""

    recalls: list[float] = field(default_factory=list)
    """Of each step: the share of the first k of that sum that was delivered."""

    def select(self, row: torch.Tensor) -> torch.Tensor:
        """No rank selects."""
        return torch.ones_like(row, dtype=torch.bool)

    def reduce(
        self, acc: torch.Tensor, sent: torch.Tensor, chosen: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Clears what is delivered in all residuals."""
        exact = dense_sum(acc)
        total = self.delivered(acc, exact)
        found = total != 0
        self.residual = torch.where(found, 0.0, acc)
        right = first(exact, self.k)
        self.recalls.append((found & right).sum().item() / max(1, int(right.sum())))
        return total, chosen.sum(0)

    def delivered(self, acc: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
        """The sum, zero but for what is delivered. exact: the sum of everything."""
        self.bytes = dense_bytes(self.ranks, 4 * self.d)
        return torch.where(first(exact, self.k), exact, 0.0)


@dataclass
class Sketch(TrueTopK):
    """What a count-sketch of that sum finds of it; new hashes in each step, as the library's."""

    def start(self, ranks: int, shapes: Sequence[torch.Size]) -> None:
        """Before the first call."""
        super().start(ranks, shapes)
        self.steps = 0

    def delivered(self, acc: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
        """The first k of the sums that were fetched; see `sketch` of docs/algorithms.md."""
        self.steps += 1
        if SENT * self.k >= self.d:
            return super().delivered(acc, exact)
        hashes = hashes_of(self.d, COLUMNS * self.k, self.steps)
        sketches = hashes.sketches(acc)
        estimates = hashes.estimates(dense_sum(sketches))
        heavy = first(estimates, HEAVY * self.k).nonzero().flatten()
        fetched = torch.zeros(self.ranks, HEAVY * self.k)
        fetched[:, : len(heavy)] = acc[:, heavy]
        sums = dense_sum(fetched)
        found = first(sums, self.k).nonzero().flatten()
        total = torch.zeros(self.d)
        total[heavy[found]] = sums[found]
        self.bytes = dense_bytes(self.ranks, 4 * sketches.shape[1])
        self.bytes += dense_bytes(self.ranks, 4 * HEAVY * self.k)
        return total


@dataclass
class Hashes:
    """Where each element is in each row of a sketch, and its sign there."""

    cells: np.ndarray
    """(rows, d), among those of all rows."""
    signs: np.ndarray
    """(rows, d), 1 or -1."""
    columns: int

    def sketches(self, acc: torch.Tensor) -> torch.Tensor:
        """Of each rank, all rows' cells, one row after the other; summed in fixed point."""
        d = acc.shape[1]
        largest = acc.abs().amax(1).tolist()
        above = [math.frexp(each)[1] if each > 0 else 0 for each in largest]
        scales = np.array([2.0 ** (min(62 - d.bit_length(), 51) - each) for each in above])
        numbers = np.rint(acc.numpy().astype(np.float64) * scales[:, None]).astype(np.int64)
        ends = ROWS * np.arange(d + 1)
        of_elements = (self.signs.T.ravel(), self.cells.T.ravel(), ends)
        matrix = csc_array(of_elements, shape=(ROWS * self.columns, d))
        cells = (matrix @ numbers.T).astype(np.float64) / scales
        return torch.from_numpy(np.ascontiguousarray(cells.T).astype(np.float32))

    def estimates(self, sketch: torch.Tensor) -> torch.Tensor:
        """The median over the rows, for each element."""
        of_rows = np.where(self.signs > 0, sketch.numpy()[self.cells], -sketch.numpy()[self.cells])
        return torch.from_numpy(np.median(of_rows, axis=0))


@functools.lru_cache(maxsize=256)  # other trainings of as many steps have the same
def hashes_of(d: int, columns: int, seed: int) -> Hashes:
    """Polynomials modulo PRIME, whose coefficients the seed says."""
    numbers = [drawn(seed, n) % PRIME for n in range(1, 6 * ROWS + 1)]
    of_rows = np.array(numbers, np.uint64).reshape(ROWS, 6)
    # cell = floor(hash * columns / 2^61), in halves so that no product exceeds 64 bits.
    hashes = polynomials(of_rows[:, :2], d)
    high, low = hashes >> np.uint64(30), hashes & np.uint64((1 << 30) - 1)
    wide = np.uint64(columns)
    cells = (high * wide + (low * wide >> np.uint64(30))) >> np.uint64(31)
    cells += np.uint64(columns) * np.arange(ROWS, dtype=np.uint64)[:, None]
    odd = polynomials(of_rows[:, 2:], d) & np.uint64(1)
    return Hashes(cells.astype(np.int32), 1 - 2 * odd.astype(np.int8), columns)


def drawn(seed: int, n: int) -> int:
    """The n-th number of random-k's keys."""
    word = (1 << 64) - 1
    x = (seed + n * 0x9E3779B97F4A7C15) & word
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & word
    x = (x ^ x >> 27) * 0x94D049BB133111EB & word
    return x ^ x >> 31


def polynomials(coefficients: np.ndarray, d: int) -> np.ndarray:
    """Modulo PRIME at 0 ... d - 1, (rows, d); coefficients (rows, n), that of x^0 first.

    By differences: the n - 1 next to a value say the next value without a product. All runs of some
    sqrt(d) values go side by side.
    """
    rows, count = coefficients.shape
    length = math.isqrt(d) + 1
    begins = range(0, d, length)
    heads = [
        [[_value(row, begin + i) for begin in begins] for row in coefficients.tolist()]
        for i in range(count)
    ]
    table = np.array(heads, np.uint64)  # (n, rows, runs)
    for i in range(1, count):
        table[i:] = _reduced(table[i:] + np.uint64(PRIME) - table[i - 1 : -1])
    found = np.empty((length, rows, len(begins)), np.uint64)
    for at in range(length):
        found[at] = table[0]
        table[:-1] = _reduced(table[:-1] + table[1:])
    return found.transpose(1, 2, 0).reshape(rows, -1)[:, :d]


def _value(coefficients: Sequence[int], x: int) -> int:
    return sum(each * x**power for power, each in enumerate(coefficients)) % PRIME


def _reduced(x: np.ndarray) -> np.ndarray:
    """Of what is below twice PRIME: the smaller one has not wrapped."""
    smaller: np.ndarray = np.minimum(x, x - np.uint64(PRIME))
    return smaller
