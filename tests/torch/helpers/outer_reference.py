"""The rule of docs/outer.md, all replicas in one process, in numpy.

It shares no code with src/: loops over tiles, sorts and dictionaries. Parameters, shared
parameters, momentum and errors of real replicas must equal its own, bit for bit.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from helpers.reference import _dense_sum, _walk

Vector = np.ndarray
Entries = dict[int, np.float32]


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
    clip: str | None = None
    sign: bool = False
    averages: bool = False
    visible: bool = False
    gradients: bool = False
    fragments: int = 1
    delay: int = 0
    mix: float = 0.0


PRESETS = {
    "pulseloco": Rule(lr=0.7, momentum=0.9, nesterov=True, error_decay=1.0, visible=True),
    # With the learning rate and the weight decay of its inner optimizer, and without the transform.
    "demo": Rule(
        lr=0.01,
        decay=0.01,
        error_decay=0.999,
        transform="tiles",
        k=32,
        wire="bf16",
        mean="contributors",
        sign=True,
        gradients=True,
    ),
    "localsgd": Rule(averages=True),
    "diloco": Rule(lr=0.7, momentum=0.9, nesterov=True),
    "streaming-diloco": Rule(
        lr=0.4,
        momentum=0.9,
        nesterov=True,
        error_decay=1.0,
        wire="4bit",
        fragments=3,
        delay=1,
        mix=0.5,
    ),
    "sparseloco": Rule(error_decay=0.95, transform="tiles", k=64, wire="2bit", mean="contributors"),
}


def largest_divisor(size: int) -> int:
    return max(each for each in range(1, 65) if size % each == 0)


class Layout:
    """Which element of which parameter stands where, for one tile size (or blocks of 4,096)."""

    def __init__(self, shapes: dict[int, tuple[int, ...]], transform: str | None) -> None:
        self.parts: dict[int, list[tuple[int, np.ndarray]]] = {}
        for number, shape in shapes.items():
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


LEVELS = [-110, -85, -65, -48, -34, -21, -10, 0, 10, 20, 31, 45, 60, 79, 100, 127]


def four_bits(vector: Vector) -> Vector:
    result, f = np.zeros_like(vector), np.float32
    for begin in range(0, len(vector), 64):
        x = vector[begin : begin + 64]
        largest = np.abs(x).max()
        if largest == 0:
            continue
        unit = max(largest / f(127), np.finfo(f).tiny).reshape(1).astype(f)
        unit = (unit.view(np.uint32) & np.uint32(0xFFFF0000)).view(f)[0]
        unit = unit if largest in x else -unit
        for i, whole in enumerate(np.rint(x * (f(1) / unit))):
            level = min(LEVELS, key=lambda each, of=whole: (abs(each - of), abs(each)))
            result[begin + i] = f(level) * unit if level else f(0)
    return result


CODES = {"bf16": (256, bf16), "4bit": (64, four_bits)}


def dense(vectors: list[Vector], wire: str | None) -> tuple[Vector, list[Vector]]:
    """The sum of all, and what rounding it lost on each replica."""
    if wire is None:
        return _dense_sum(vectors), [np.zeros_like(each) for each in vectors]
    block, code = CODES[wire]
    coded = [code(each) for each in vectors]
    left = [each - sent for each, sent in zip(vectors, coded, strict=True)]
    total = coded[0].copy()
    for each in coded[1:]:
        total = total + each
    sent = code(total)
    ranks, blocks = len(vectors), -(-len(total) // block)
    for rank in range(ranks):
        owned = slice(block * (rank * blocks // ranks), block * ((rank + 1) * blocks // ranks))
        left[rank][owned] += (total - sent)[owned]
    return sent, left


class Replicas:
    """All replicas: their models, and what is shared. Layers are the first parts of names."""

    def __init__(self, models: Sequence[nn.Module], rule: Rule, inner_steps: int) -> None:
        self.models, self.rule, self.inner_steps = models, rule, inner_steps
        parameters = dict(models[0].named_parameters())
        self.shared = [each.detach().numpy().copy() for each in parameters.values()]
        layers = [*dict.fromkeys(name.split(".")[0] for name in parameters)]
        self.layouts = [
            Layout(
                {
                    number: tuple(each.shape)
                    for number, (name, each) in enumerate(parameters.items())
                    if layers.index(name.split(".")[0]) % rule.fragments == fragment
                },
                rule.transform,
            )
            for fragment in range(rule.fragments)
        ]
        zeros = [
            {block: np.zeros_like(layout.gather(block, self.shared)) for block in layout.parts}
            for layout in self.layouts
        ]
        self.velocity = copy.deepcopy(zeros)
        self.errors = [copy.deepcopy(zeros) for _ in models]
        self.waiting: list[tuple[int, int, dict]] = []
        self.members = [*range(len(models))]
        """Those that exchange, in the group's order; others keep what they have."""
        self.joining: set[int] = set()
        """Members of weight 0."""
        self.anchors: dict[tuple[int, int], list[Vector]] = {}
        """What replicas that have missed rounds of a fragment took over last."""

    def after(self, step: int) -> None:
        """What happens after this many steps of all replicas."""
        while self.waiting and self.waiting[0][0] == step:
            self.use(*self.waiting.pop(0)[1:])
        for fragment in range(self.rule.fragments):
            if step % self.inner_steps == fragment * self.inner_steps // self.rule.fragments:
                sums = self.sums_of(fragment)
                if self.rule.delay:
                    self.waiting.append((step + self.rule.delay, fragment, sums))
                else:
                    self.use(fragment, sums)

    def meet(self, members: Sequence[int], joining: Sequence[int] = (), fragment: int = 0) -> None:
        """A round of these replicas, some of which join in it."""
        self.members, self.joining = [*members], {*joining}
        for r in joining:
            for tensor, shared in zip(self.models[r].parameters(), self.shared, strict=True):
                tensor.detach().numpy()[...] = shared
                tensor.grad = torch.zeros_like(tensor)
        self.use(fragment, self.sums_of(fragment))

    @property
    def weights(self) -> int:
        """The number of members of weight 1."""
        return len(self.members) - len(self.joining)

    def blocks(self, fragment: int) -> list[int]:
        return [*self.layouts[fragment].parts]

    def local(self, fragment: int, block: int) -> list[Vector]:
        return [
            self.layouts[fragment].gather(
                block, [each.detach().numpy() for each in self.models[r].parameters()]
            )
            for r in self.members
        ]

    def taken(self, fragment: int, block: int) -> list[Vector]:
        """What each member has moved from."""
        return [
            self.layouts[fragment].gather(block, self.anchors.get((r, fragment), self.shared))
            for r in self.members
        ]

    def sums_of(self, fragment: int) -> dict[int, tuple[Vector, list[Vector]]]:
        """By block size, the mean of what replicas send, and their errors afterwards."""
        rule, f = self.rule, np.float32
        blocks = self.blocks(fragment)
        if rule.averages:
            sums = {block: _dense_sum(self.averaged(fragment, block)) for block in blocks}
            return {block: (total / f(self.weights), []) for block, total in sums.items()}
        wanted = {block: self.wanted(fragment, block) for block in blocks}
        if rule.k is None and not rule.visible:
            sums = {block: dense(wanted[block], rule.wire) for block in blocks}
            return {b: (total / f(self.weights), left) for b, (total, left) in sums.items()}
        lists = {
            block: self.lists(
                block, wanted[block], self.layouts[fragment].gather(block, self.shared)
            )
            for block in blocks
        }
        errors = {block: self.errors_left(wanted[block], lists[block]) for block in blocks}
        if rule.clip:
            clipped = self.clipped(lists)
            lists = {
                block: [rounded(each, rule.wire) for each in some]
                for block, some in clipped.items()
            }
            for block, some in clipped.items():
                for error, entries, sent in zip(errors[block], some, lists[block], strict=True):
                    for i, value in entries.items():
                        error[i] += f(rule.subtract) * (f(value) - f(sent[i]))
        return {
            block: (self.mean_of(lists[block], len(wanted[block][0])), errors[block])
            for block in blocks
        }

    def wanted(self, fragment: int, block: int) -> list[Vector]:
        """a of each replica."""
        rule, f = self.rule, np.float32
        local, taken = self.local(fragment, block), self.taken(fragment, block)
        moved = [f(rule.scale) * (anchor - each) for anchor, each in zip(taken, local, strict=True)]
        if rule.gradients:
            moved = [
                f(rule.lr)
                * self.layouts[fragment].gather(
                    block, [each.grad.numpy() for each in self.models[r].parameters()]
                )
                for r in self.members
            ]
        return [
            f(rule.error_decay) * self.errors[r][fragment][block] + each
            if r not in self.joining
            else np.zeros_like(each)
            for r, each in zip(self.members, moved, strict=True)
        ]

    def averaged(self, fragment: int, block: int) -> list[Vector]:
        """What each member adds to a mean of parameters."""
        shared = self.layouts[fragment].gather(block, self.shared)
        local, taken = self.local(fragment, block), self.taken(fragment, block)
        return [
            np.zeros_like(shared) if r in self.joining else each + (shared - anchor)
            for r, each, anchor in zip(self.members, local, taken, strict=True)
        ]

    def use(self, fragment: int, sums: dict[int, tuple[Vector, list[Vector]]]) -> None:
        """Moves a fragment's shared parameters; all replicas take them over."""
        rule, f, layout = self.rule, np.float32, self.layouts[fragment]
        for r in range(len(self.models)):
            if r in self.members:
                self.anchors.pop((r, fragment), None)
            else:
                self.anchors.setdefault((r, fragment), [each.copy() for each in self.shared])
        for block, (mean, errors) in sums.items():
            shared = layout.gather(block, self.shared)
            layout.scatter(block, self.moved(fragment, block, shared, mean), self.shared)
            for r, each in zip(self.members, errors, strict=bool(errors)):
                self.errors[r][fragment][block] = each
            shared = layout.gather(block, self.shared)
            for r, mine in zip(self.members, self.local(fragment, block), strict=True):
                tensors = [each.detach().numpy() for each in self.models[r].parameters()]
                mixed = rule.mix and r not in self.joining
                taken = f(rule.mix) * mine + f(1 - rule.mix) * shared if mixed else shared
                layout.scatter(block, taken, tensors)

    def moved(self, fragment: int, block: int, shared: Vector, mean: Vector) -> Vector:
        rule, f = self.rule, np.float32
        if rule.averages:
            return mean
        u = np.sign(mean) if rule.sign else mean
        v = f(rule.momentum) * self.velocity[fragment][block] + u
        self.velocity[fragment][block] = v
        d = u + f(rule.momentum) * v if rule.nesterov else v
        return f(1 - rule.lr * rule.decay) * shared - f(rule.lr) * d

    def lists(self, block: int, wanted: list[Vector], shared: Vector) -> list[Entries]:
        """What replicas send of a block size."""
        if self.rule.visible:
            return [
                {i: each[i] for i in np.flatnonzero(bf16(shared - each) != bf16(shared))}
                for each in wanted
            ]
        return [rounded(selected(each, block, self.rule.k), self.rule.wire) for each in wanted]

    def errors_left(self, wanted: list[Vector], lists: list[Entries]) -> list[Vector]:
        errors = []
        for each, entries in zip(wanted, lists, strict=True):
            sent = np.zeros_like(each)
            sent[list(entries)] = list(entries.values())
            errors.append(each - np.float32(self.rule.subtract) * sent)
        return errors

    def clipped(self, lists: dict[int, list[Entries]]) -> dict[int, list[Entries]]:
        """Those of all blocks, by replica, not rounded. Of two medians it is the lower one."""
        f = np.float32
        norms = [
            f(
                math.sqrt(
                    math.fsum(float(v) ** 2 for some in lists.values() for v in some[r].values())
                )
            )
            for r in range(len(self.members))
        ]
        weighted = sorted(
            norm for r, norm in zip(self.members, norms, strict=True) if r not in self.joining
        )
        median = weighted[(len(weighted) - 1) // 2]
        return {
            block: [
                entries if norm <= median else {i: v * (median / norm) for i, v in entries.items()}
                for entries, norm in zip(some, norms, strict=True)
            ]
            for block, some in lists.items()
        }

    def mean_of(self, lists: list[Entries], numel: int) -> Vector:
        rule, f = self.rule, np.float32
        union, _ = _walk(lists, 0, reselects=False)
        total = np.zeros(numel, f)
        for i, value in union.items():
            who = sum(i in entries for entries in lists)
            total[i] = value / f(who if rule.mean == "contributors" else self.weights)
        return total

    def tensors(self, vectors: list[dict[int, Vector]]) -> list[Vector]:
        """By parameter."""
        found = [np.zeros_like(each) for each in self.shared]
        for layout, some in zip(self.layouts, vectors, strict=True):
            for block, vector in some.items():
                layout.scatter(block, vector, found)
        return found
