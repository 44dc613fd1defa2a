"""Room: tests/torch. The rule of docs/outer.md, all replicas in one process, in numpy.

It shares no code with src/: loops over tiles, sorts and dictionaries. Parameters, shared
parameters, momentum and errors of real replicas must equal its own, bit for bit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from reference import _dense_sum, _walk
from torch import nn

Vector = np.ndarray


@dataclasses.dataclass
class Rule:
    """The named parts; see docs/outer.md."""

    lr: float = 1.0
    momentum: float = 0.0
    nesterov: bool = False
    decay: float = 0.0
    error_decay: float = 0.0
    scale: float = 1.0
    subtract: float = 1.0
    transform: str | None = None
    k: int | None = None
    wire: str | None = None
    mean: str = "participants"
    sign: bool = False
    averages: bool = False


PRESETS = {
    "localsgd": Rule(averages=True),
    "diloco": Rule(lr=0.7, momentum=0.9, nesterov=True),
    "sparseloco": Rule(error_decay=0.95, transform="tiles", k=64, wire="2bit", mean="contributors"),
}


def largest_divisor(size: int) -> int:
    return max(each for each in range(1, 65) if size % each == 0)


class Layout:
    """Which element of which parameter stands where, for one tile size (or blocks of 4,096)."""

    def __init__(self, shapes: Sequence[tuple[int, ...]], transform: str | None) -> None:
        self.parts: dict[int, list[tuple[int, np.ndarray]]] = {}
        for number, shape in enumerate(shapes):
            size = int(np.prod(shape))
            places = np.arange(size)
            if transform is None:
                self.parts.setdefault(4096, []).append((number, places))
                continue
            rows = shape[0] if len(shape) > 1 else 1
            matrix = places.reshape(rows, -1)
            high, wide = largest_divisor(rows), largest_divisor(matrix.shape[1])
            tiles = [
                matrix[i : i + high, j : j + wide].ravel()
                for i in range(0, rows, high)
                for j in range(0, matrix.shape[1], wide)
            ]
            self.parts.setdefault(high * wide, []).append((number, np.concatenate(tiles)))

    def gather(self, block: int, tensors: Sequence[Vector]) -> Vector:
        return np.concatenate(
            [tensors[number].ravel()[places] for number, places in self.parts[block]]
        )

    def scatter(self, block: int, vector: Vector, tensors: Sequence[Vector]) -> None:
        begin = 0
        for number, places in self.parts[block]:
            tensors[number].reshape(-1)[places] = vector[begin : begin + len(places)]
            begin += len(places)


def selected(vector: Vector, block: int, k: int) -> dict[int, np.float32]:
    """The first k of each block, by magnitude and then by index; no zeros."""
    found: dict[int, np.float32] = {}
    for begin in range(0, len(vector), block):
        piece = vector[begin : begin + block]
        order = sorted(np.flatnonzero(piece), key=lambda i, of=piece: (-abs(of[i]), i))
        # The last block's share is of its own length.
        most = min(len(piece), max(1, int(min(1.0, k / block) * len(piece) + 0.5)))
        found.update((begin + int(i), piece[i]) for i in order[:most])
    return dict(sorted(found.items()))


def cut(mean: float) -> np.float32:
    """The 24 highest bits."""
    fraction, exponent = np.frexp(np.float64(mean))
    return np.float32(np.ldexp(np.trunc(np.ldexp(fraction, 24)), exponent - 24))


def added(values: Sequence[float]) -> float:
    total = 0.0
    for each in values:
        total += each
    return total


def rounded(entries: dict[int, np.float32], wire: str | None) -> dict[int, np.float32]:
    """Of a list, on the wires None, bf16, sign and 2bit."""
    if wire is None:
        return entries
    if wire == "bf16":
        return {i: bf16(np.asarray([v]))[0] for i, v in entries.items()}
    indices, result = list(entries), {}
    for begin in range(0, len(indices), 256):
        some = indices[begin : begin + 256]
        sizes = [abs(float(entries[i])) for i in some]
        mean = min(max(added(sizes) / len(sizes), min(sizes)), max(sizes))
        low = high = cut(mean)
        if wire == "2bit" and mean < max(sizes):
            below, above = [x for x in sizes if x <= mean], [x for x in sizes if x > mean]
            low = cut(min(max(added(below) / len(below), min(sizes)), mean))
            high = cut(min(max(added(above) / len(above), mean), max(sizes)))
        for i in some:
            level = high if abs(float(entries[i])) > mean else low
            result[i] = np.float32(-level if entries[i] < 0 else level)
    return result


def bf16(vector: Vector) -> Vector:
    return torch.from_numpy(vector).bfloat16().float().numpy()


def dense(vectors: list[Vector], wire: str | None) -> tuple[Vector, list[Vector]]:
    """The sum of all, and what rounding it lost on each replica."""
    if wire is None:
        return _dense_sum(vectors), [np.zeros_like(each) for each in vectors]
    assert wire == "bf16"
    coded = [bf16(each) for each in vectors]
    left = [each - code for each, code in zip(vectors, coded, strict=True)]
    total = coded[0].copy()
    for each in coded[1:]:
        total = total + each
    code = bf16(total)
    ranks, blocks = len(vectors), -(-len(total) // 256)
    for rank in range(ranks):
        owned = slice(256 * (rank * blocks // ranks), 256 * ((rank + 1) * blocks // ranks))
        left[rank][owned] += (total - code)[owned]
    return code, left


class Replicas:
    """All replicas: their models and inner optimizers, and what is shared."""

    def __init__(self, models: Sequence[nn.Module], rule: Rule) -> None:
        self.models, self.rule = models, rule
        names = dict(models[0].named_parameters())
        self.layout = Layout([tuple(each.shape) for each in names.values()], rule.transform)
        self.shared = [each.detach().numpy().copy() for each in names.values()]
        vectors = {block: self.layout.gather(block, self.shared) for block in self.layout.parts}
        self.velocity = {block: np.zeros_like(each) for block, each in vectors.items()}
        self.errors = [
            {block: np.zeros_like(each) for block, each in vectors.items()} for _ in models
        ]

    def round(self) -> None:
        """One exchange, and what follows from it on all replicas."""
        for block in self.layout.parts:
            shared = self.layout.gather(block, self.shared)
            local = [
                self.layout.gather(block, [each.detach().numpy() for each in model.parameters()])
                for model in self.models
            ]
            self.layout.scatter(block, self.moved(block, shared, local), self.shared)
        for model in self.models:
            for parameter, new in zip(model.parameters(), self.shared, strict=True):
                parameter.data.copy_(torch.from_numpy(new))

    def moved(self, block: int, shared: Vector, local: list[Vector]) -> Vector:
        rule, f = self.rule, np.float32
        if rule.averages:
            return _dense_sum(local) / f(len(local))
        wanted = [
            f(rule.error_decay) * self.errors[r][block] + f(rule.scale) * (shared - each)
            for r, each in enumerate(local)
        ]
        mean = self.mean(block, wanted)
        u = np.sign(mean) if rule.sign else mean
        v = self.velocity[block] = f(rule.momentum) * self.velocity[block] + u
        d = u + f(rule.momentum) * v if rule.nesterov else v
        return f(1 - rule.lr * rule.decay) * shared - f(rule.lr) * d

    def mean(self, block: int, wanted: list[Vector]) -> Vector:
        """The errors are those of the next round afterwards."""
        rule, f = self.rule, np.float32
        if rule.k is None:
            total, left = dense(wanted, rule.wire)
            for r, each in enumerate(left):
                self.errors[r][block] = each
            return total / f(len(wanted))
        lists = [rounded(selected(each, block, rule.k), rule.wire) for each in wanted]
        for r, entries in enumerate(lists):
            sent = np.zeros_like(wanted[r])
            sent[list(entries)] = list(entries.values())
            self.errors[r][block] = wanted[r] - f(rule.subtract) * sent
        union, _ = _walk(lists, 0, reselects=False)
        total = np.zeros_like(wanted[0])
        for i, value in union.items():
            who = sum(i in entries for entries in lists)
            total[i] = value / f(who if rule.mean == "contributors" else len(lists))
        return total
