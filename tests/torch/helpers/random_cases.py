"""Collectives drawn at random: the inputs of each rank.

A case is drawn from a seed, the same on every rank, and so are all ranks' inputs. Each rank can
therefore compute the result from them sequentially. How a collective is called, and what its result
must be, is in random_kinds.py: one class and one entry of KINDS for each.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

HALVES = (torch.float16, torch.bfloat16)
FLOATS = (torch.float32, torch.float64, *HALVES)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
COMPLEX = (torch.complex64, torch.complex128)
ONLY_MOVED = (torch.float8_e4m3fn, torch.float8_e5m2)
REDUCED = (*FLOATS, *INTEGERS, *UNSIGNED, torch.bool)
MOVED = (*REDUCED, *COMPLEX, *ONLY_MOVED)
# What gloo supports of the above; the rest is only compared with the reference.
GLOO_REDUCES = (*FLOATS, torch.uint8, torch.int8, torch.int32, torch.int64)
GLOO_MOVES = (*GLOO_REDUCES, torch.bool)

ARITHMETIC = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "PREMUL_SUM")
BITWISE = ("BAND", "BOR", "BXOR")


def ops_of(dtype: torch.dtype) -> tuple[str, ...]:
    if dtype.is_floating_point:
        return ARITHMETIC
    if dtype == torch.bool:
        return ("SUM", "PRODUCT", "MIN", "MAX", *BITWISE)
    return (*ARITHMETIC[:-1], *BITWISE)


@dataclasses.dataclass(frozen=True)
class Case:
    """One collective of one group."""

    seed: int
    number: int
    kind: str
    size: int  # of the group
    dtype: torch.dtype
    op: str
    shape: tuple[int, ...]
    layout: str  # for tensors that may have any
    exact: bool  # integers so small that sums are exact
    root: int
    splits: tuple[tuple[int, ...], ...]  # [from][to]: lengths of parts that may differ
    asynchronous: bool

    @property
    def tag(self) -> int:
        return self.number

    def generator(self, rank: int, salt: int = 0) -> torch.Generator:
        mixed = hash((self.seed, self.number, rank, salt))
        return torch.Generator().manual_seed(mixed % (1 << 62))

    def values(self, rank: int, shape: tuple[int, ...] | None = None, salt: int = 0):
        """The input of group rank `rank`; contiguous."""
        shape = self.shape if shape is None else shape
        generator = self.generator(rank, salt)
        if self.dtype in ONLY_MOVED:
            drawn = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
            return drawn.view(self.dtype)
        if self.dtype == torch.bool:
            return torch.randint(0, 2, shape, generator=generator).bool()
        if self.dtype.is_complex:
            return torch.randn(shape, generator=generator, dtype=self.dtype)
        if self.dtype.is_floating_point:
            if self.exact:
                return torch.randint(-4, 5, shape, generator=generator).to(self.dtype)
            return torch.randn(shape, generator=generator, dtype=torch.float64).to(self.dtype)
        if self.op == "AVG":  # of a sum that has not wrapped
            return torch.randint(0, 25, shape, generator=generator).to(self.dtype)
        wide = torch.randint(-(1 << 62), 1 << 62, shape, generator=generator)
        if self.dtype in UNSIGNED:
            wide = wide.abs()  # so that int64 orders them alike
        return wide.to(self.dtype)

    def factor(self, rank: int) -> float:
        return (0.5, 2.0, -1.0, 0.25)[rank % 4]

    def reduce_op(self, rank: int):
        if self.op == "PREMUL_SUM":
            return dist._make_nccl_premul_sum(self.factor(rank))
        return getattr(ReduceOp, self.op)

    def laid_out(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy with the case's memory layout."""
        if self.layout == "strided":
            buffer = torch.zeros((*tensor.shape, 2), dtype=tensor.dtype)[..., 0]
        elif self.layout == "transposed" and tensor.dim() > 1:
            buffer = torch.empty(tensor.shape[::-1], dtype=tensor.dtype).permute(
                *reversed(range(tensor.dim()))
            )
        elif self.layout == "offset":
            buffer = torch.empty(tensor.numel() + 3, dtype=tensor.dtype)[3:].view(tensor.shape)
        else:
            buffer = torch.empty_like(tensor)
        return buffer.copy_(tensor)

    def reduced(self, inputs: list[torch.Tensor]) -> torch.Tensor:
        """The reduction of all ranks' inputs: in float64, int64 or bool, then rounded once."""
        if self.dtype == torch.bool:
            words = {"SUM": "BOR", "MAX": "BOR", "PRODUCT": "BAND", "MIN": "BAND"}
            return functools.reduce(FOLDS[words.get(self.op, self.op)], inputs)
        if self.dtype.is_floating_point:
            wide = [each.double() for each in inputs]
            if self.op == "PREMUL_SUM":
                wide = [each * self.factor(rank) for rank, each in enumerate(wide)]
            result = functools.reduce(FOLDS[self.op], wide)
            return (result / self.size if self.op == "AVG" else result).to(self.dtype)
        wide = [each.to(torch.int64) for each in inputs]
        result = functools.reduce(FOLDS[self.op], wide)
        if self.op == "AVG":
            result = result.div(self.size, rounding_mode="floor")
        return result.to(self.dtype)


FOLDS: dict[str, Callable] = {
    **dict.fromkeys(("SUM", "AVG", "PREMUL_SUM"), operator.add),
    "PRODUCT": operator.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": operator.and_,
    "BOR": operator.or_,
    "BXOR": operator.xor,
}
