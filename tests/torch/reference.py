"""Room: tests/torch. The sparse all-reduce of docs/algorithms.md, rank after rank, in numpy.

It shares no code with src/ or with the C++ reference: dictionaries and sorts. What every rank's
tensor and residual must equal, bit for bit.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

DENSE_TREE_BYTES = 65536


@dataclasses.dataclass
class Outcome:
    tensor: torch.Tensor
    residuals: list[torch.Tensor]


def accumulation(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def sparse_all_reduce(
    gradients: list[torch.Tensor],
    residuals: list[torch.Tensor] | None,
    k: int,
    algorithm: str = "gtopk",
    put_back: str = "own",
    average: bool = False,
) -> Outcome:
    """All ranks' parts at once; tensors are 1-d. No residuals are zeros, returned all the same."""
    dtype, shape = gradients[0].dtype, gradients[0].shape
    wide = accumulation(dtype)
    if residuals is None:
        residuals = [torch.zeros(shape, dtype=wide) for _ in gradients]
    accs = [
        (gradient.to(wide) + residual).numpy()
        for gradient, residual in zip(gradients, residuals, strict=True)
    ]
    not_a_step = Outcome(torch.full(shape, torch.nan, dtype=dtype), residuals)
    if not all(np.isfinite(acc).all() for acc in accs):
        return not_a_step

    if algorithm == "dense":
        total = _dense_sum(accs)
        after = [np.zeros_like(acc) for acc in accs]
    else:
        selections = [_first(dict(enumerate(acc)), k) for acc in accs]
        root, dropped = _walk(selections, k, reselects=algorithm != "topk")
        total = np.zeros_like(accs[0])
        for index, value in root.items():
            total[index] = value
        after = []
        for rank, (acc, selection) in enumerate(zip(accs, selections, strict=True)):
            left = acc.copy()
            for index in selection:
                if put_back == "merged" or algorithm == "topk" or index in root:
                    left[index] = 0
            for keeper, index, value in dropped:
                if keeper == rank and (put_back == "merged" or index in root):
                    left[index] += value
            after.append(left)

    if average:
        total = total / total.dtype.type(len(accs))
    result = torch.from_numpy(total).to(dtype)
    if not torch.isfinite(result).all():
        return not_a_step
    return Outcome(result, [torch.from_numpy(each) for each in after])


def _first(entries: dict[int, np.floating], k: int) -> dict[int, np.floating]:
    """The first k in the selection order: |value| descending, index ascending, no zeros."""
    ordered = sorted(
        ((i, v) for i, v in entries.items() if v != 0), key=lambda entry: (-abs(entry[1]), entry[0])
    )
    return dict(ordered[:k])


def _shape(ranks: int) -> tuple[list[list[int]], int]:
    """The leaves as lists of ranks, in order."""
    p = 1 << (ranks.bit_length() - 1)
    folded = ranks - p
    pairs = [[2 * j, 2 * j + 1] for j in range(folded)]
    return pairs + [[rank] for rank in range(2 * folded, ranks)], p


def _walk(
    selections: list[dict[int, np.floating]], k: int, *, reselects: bool
) -> tuple[dict[int, np.floating], list[tuple[int, int, np.floating]]]:
    """The root's entries, and what nodes dropped as (rank that keeps it, index, value)."""
    dropped: list[tuple[int, int, np.floating]] = []

    def merge(left, right):
        lowest, a = left
        _, b = right
        union = dict(a)
        for index, value in b.items():
            union[index] = union[index] + value if index in union else value
        if not reselects:
            return lowest, union
        kept = _first(union, k)
        dropped.extend((lowest, i, v) for i, v in union.items() if v != 0 and i not in kept)
        return lowest, kept

    leaves, _ = _shape(len(selections))
    level = []
    for members in leaves:
        node = (members[0], selections[members[0]])
        for other in members[1:]:
            node = merge(node, (other, selections[other]))
        level.append(node)
    while len(level) > 1:
        level = [merge(level[i], level[i + 1]) for i in range(0, len(level), 2)]
    return level[0][1], dropped


def _dense_sum(accs: list[np.ndarray]) -> np.ndarray:
    ranks, d = len(accs), len(accs[0])
    if accs[0].nbytes <= DENSE_TREE_BYTES:
        level = []
        for members in _shape(ranks)[0]:
            level.append(accs[members[0]] + accs[members[1]] if members[1:] else accs[members[0]])
        while len(level) > 1:
            level = [level[i] + level[i + 1] for i in range(0, len(level), 2)]
        return level[0].copy()
    total = np.empty_like(accs[0])
    for chunk in range(ranks):
        part = slice(chunk * d // ranks, (chunk + 1) * d // ranks)
        total[part] = accs[(chunk + 1) % ranks][part]
        for step in range(2, ranks + 1):
            total[part] = total[part] + accs[(chunk + step) % ranks][part]
    return total
