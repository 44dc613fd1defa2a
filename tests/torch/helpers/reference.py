"""The sparse all-reduce of docs/algorithms.md, sequentially, in numpy.

It shares no code with src/ or with the C++ reference, and uses dictionaries and sorts. Every rank's
tensor and residual must equal its results, bit for bit.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

DENSE_TREE_BYTES = 65536
# All but random-k, whose result depends on the number of the call.
ALGORITHMS = [
    *("gtopk", "gtopk-tree", "topk", "dense", "rs-ag", "exact", "hierarchical", "gtopk-placed"),
    "true-topk",
]


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
    hosts: list[int] | None = None,
    mean: str = "ranks",
) -> Outcome:
    """Computes all ranks' results; tensors are 1-d. residuals=None means zeros, and new ones are
    returned all the same. hosts: each rank's host number, ascending with the hosts' lowest ranks;
    None: one host. mean: what an average divides by."""
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
    elif algorithm == "true-topk":
        found = _first(dict(enumerate(_dense_sum(accs))), k)
        total = np.zeros_like(accs[0])
        after = [acc.copy() for acc in accs]
        for index, value in found.items():
            total[index] = value
            for left in after:
                left[index] = 0
    else:
        selections = [_first(dict(enumerate(acc)), k) for acc in accs]
        if algorithm in ("rs-ag", "exact"):
            d = len(accs[0])
            root, dropped = _regions(selections, min(k, d), d, exact=algorithm == "exact")
        elif algorithm == "hierarchical":
            root, dropped = _hosts(selections, k, hosts or [0] * len(selections), exact=True)
        elif algorithm == "gtopk-placed":
            root, dropped = _hosts(selections, k, hosts or [0] * len(selections), exact=False)
        else:
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

    if average and mean == "contributors":
        for index in root:
            total[index] /= total.dtype.type(sum(index in each for each in selections))
    elif average:
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


def _hosts(
    selections: list[dict[int, np.floating]], k: int, hosts: list[int], *, exact: bool
) -> tuple[dict[int, np.floating], list[tuple[int, int, np.floating]]]:
    """Sums each host's lists in rank order and cuts the sum, or merges them up a tree; the results
    then go up a tree of the hosts.
    """
    dropped: list[tuple[int, int, np.floating]] = []
    leaders, sums = [], []
    for host in range(max(hosts) + 1):
        ranks = [rank for rank in range(len(hosts)) if hosts[rank] == host]
        if not exact:
            kept, inside = _walk([selections[rank] for rank in ranks], k, reselects=True)
            dropped.extend((ranks[place], i, v) for place, i, v in inside)
            leaders.append(ranks[0])
            sums.append(kept)
            continue
        total = dict(selections[ranks[0]])
        for rank in ranks[1:]:
            for index, value in selections[rank].items():
                total[index] = total[index] + value if index in total else value
        kept = _first(total, k)
        dropped.extend((ranks[0], i, v) for i, v in total.items() if v != 0 and i not in kept)
        leaders.append(ranks[0])
        sums.append(kept)
    root, between = _walk(sums, k, reselects=True)
    return root, dropped + [(leaders[host], i, v) for host, i, v in between]


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


def _regions(
    selections: list[dict[int, np.floating]], k: int, d: int, *, exact: bool
) -> tuple[dict[int, np.floating], list[tuple[int, int, np.floating]]]:
    """The entries of all regions together, and what was dropped, as `_walk` returns it."""
    dropped: list[tuple[int, int, np.floating]] = []

    def merge(left, right, most, keeper):
        union = dict(left)
        for index, value in right.items():
            union[index] = union[index] + value if index in union else value
        if exact:
            return union
        kept = _first(union, most)
        if keeper is not None:
            dropped.extend((keeper, i, v) for i, v in union.items() if v != 0 and i not in kept)
        return kept

    leaves, p = _shape(len(selections))
    held = []
    for members in leaves:
        entries = selections[members[0]]
        for other in members[1:]:
            entries = merge(entries, selections[other], k, members[0])
        held.append(entries)
    count = 1  # regions
    while 2 * count <= p and (exact or 2 * count <= k):
        count *= 2
    borders = [0]
    for cut in range(1, count):
        begins = [
            sorted(entries)[cut * len(entries) // count] if entries and k < d else cut * d // count
            for entries in held
        ]
        borders.append(sum(begins) // p)
    borders.append(d)

    ranges = [(0, count)] * p
    distance = 1
    while distance < p:
        before, held = held, []
        for leaf in range(p):
            first, width = ranges[leaf]
            keeper: int | None = leaves[leaf][0]
            if distance < count:
                width //= 2
                first += width if leaf & distance else 0
            elif leaf & ~(2 * distance - 1) | leaf & (count - 1) != leaf:
                keeper = None  # a lower leaf computes the same node
            ranges[leaf] = (first, width)

            def here(entries, low=borders[first], high=borders[first + width]):
                return {i: v for i, v in entries.items() if low <= i < high}

            most = (first + width) * k // count - first * k // count
            theirs = before[leaf ^ distance]
            held.append(merge(here(before[leaf]), here(theirs), most, keeper))
        distance *= 2

    result: dict[int, np.floating] = {}
    for entries in held:
        result.update(entries)
    if exact:
        every, result = result, _first(result, k)
        for leaf, entries in enumerate(held):
            dropped.extend(
                (leaves[leaf][0], i, every[i]) for i in entries if i not in result and every[i] != 0
            )
    return result, dropped


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
