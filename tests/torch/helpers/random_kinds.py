"""The kinds of collectives drawn at random, a class each: how a rank calls it,
and what its result must be.
"""

from __future__ import annotations

import math
import random

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from helpers.random_cases import (
    BITWISE,
    GLOO_MOVES,
    GLOO_REDUCES,
    MOVED,
    REDUCED,
    Case,
    ops_of,
)


class Kind:
    """A call as one rank makes it, and the right result there. Stateless."""

    reduces = False
    uneven = False  # parts of different lengths
    gloo = True  # whether gloo has it at all

    def call(self, case: Case, group, rank: int, asynchronous: bool) -> tuple[list, list]:
        """Makes the call; returns the Works, and the tensors that will hold the results."""
        raise NotImplementedError

    def expected(self, case: Case, rank: int) -> list[torch.Tensor]:
        raise NotImplementedError

    def gloo_can(self, case: Case) -> bool:
        if self.reduces:
            ops = ("SUM", "PRODUCT", "MIN", "MAX")
            if not case.dtype.is_floating_point:
                ops += BITWISE
            return self.gloo and case.dtype in GLOO_REDUCES and case.op in ops
        return self.gloo and case.dtype in GLOO_MOVES

    @staticmethod
    def root(case: Case, group) -> int:
        return dist.get_global_rank(group, case.root)

    @staticmethod
    def works(work, asynchronous: bool) -> list:
        assert (work is not None) == asynchronous
        return [work] if asynchronous else []


class AllReduce(Kind):
    reduces = True

    def call(self, case, group, rank, asynchronous):
        tensor = case.laid_out(case.values(rank))
        work = dist.all_reduce(tensor, case.reduce_op(rank), group, asynchronous)
        return self.works(work, asynchronous), [tensor]

    def expected(self, case, rank):
        return [case.reduced([case.values(each) for each in range(case.size)])]


class Reduce(AllReduce):
    def call(self, case, group, rank, asynchronous):
        tensor = case.laid_out(case.values(rank))
        root = self.root(case, group)
        work = dist.reduce(tensor, root, case.reduce_op(rank), group, asynchronous)
        return self.works(work, asynchronous), [tensor] if rank == case.root else []

    def expected(self, case, rank):
        return super().expected(case, rank) if rank == case.root else []


class Broadcast(Kind):
    def call(self, case, group, rank, asynchronous):
        tensor = case.laid_out(case.values(rank))
        work = dist.broadcast(tensor, self.root(case, group), group, asynchronous)
        return self.works(work, asynchronous), [tensor]

    def expected(self, case, rank):
        return [case.values(case.root)]


class AllGather(Kind):
    def call(self, case, group, rank, asynchronous):
        buffers = [case.laid_out(torch.zeros_like(case.values(0))) for _ in range(case.size)]
        mine = case.laid_out(case.values(rank))
        return self.works(
            dist.all_gather(buffers, mine, group, asynchronous), asynchronous
        ), buffers

    def expected(self, case, rank):
        return [case.values(each) for each in range(case.size)]


class UnevenAllGather(Kind):
    uneven = True
    gloo = False

    def call(self, case, group, rank, asynchronous):
        sizes = [case.splits[each][0] for each in range(case.size)]
        buffers = [torch.zeros(size, dtype=case.dtype) for size in sizes]
        mine = case.values(rank, (sizes[rank],))
        return self.works(
            dist.all_gather(buffers, mine, group, asynchronous), asynchronous
        ), buffers

    def expected(self, case, rank):
        return [case.values(each, (case.splits[each][0],)) for each in range(case.size)]


class AllGatherIntoTensor(Kind):
    def call(self, case, group, rank, asynchronous):
        mine = case.values(rank)
        whole = torch.empty((case.size * mine.numel(),), dtype=case.dtype)
        work = dist.all_gather_into_tensor(whole, mine.view(-1), group, asynchronous)
        return self.works(work, asynchronous), [whole]

    def expected(self, case, rank):
        return [torch.cat([case.values(each).view(-1) for each in range(case.size)])]


class ReduceScatter(Kind):
    reduces = True
    uneven = True
    gloo = False

    def sizes(self, case: Case) -> list[int]:
        return [case.splits[0][each] for each in range(case.size)]

    def call(self, case, group, rank, asynchronous):
        sizes = self.sizes(case)
        parts = list(case.values(rank, (sum(sizes),)).split(sizes))
        mine = torch.empty(sizes[rank], dtype=case.dtype)
        work = dist.reduce_scatter(mine, parts, case.reduce_op(rank), group, asynchronous)
        return self.works(work, asynchronous), [mine]

    def expected(self, case, rank):
        sizes = self.sizes(case)
        wholes = [case.values(each, (sum(sizes),)) for each in range(case.size)]
        return [case.reduced([whole.split(sizes)[rank] for whole in wholes])]


class ReduceScatterTensor(Kind):
    reduces = True

    def call(self, case, group, rank, asynchronous):
        mine = torch.empty(case.values(0).numel(), dtype=case.dtype)
        whole = case.values(rank, (case.size * mine.numel(),))
        work = dist.reduce_scatter_tensor(mine, whole, case.reduce_op(rank), group, asynchronous)
        return self.works(work, asynchronous), [mine]

    def expected(self, case, rank):
        size = case.values(0).numel()
        wholes = [case.values(each, (case.size * size,)) for each in range(case.size)]
        return [case.reduced([whole.view(case.size, size)[rank] for whole in wholes])]


class AllToAllSingle(Kind):
    uneven = True

    def splits(self, case: Case, rank: int) -> tuple[list[int], list[int]]:
        """The lengths received from each rank, and sent to each."""
        return [case.splits[each][rank] for each in range(case.size)], list(case.splits[rank])

    def parts(self, case: Case, rank: int) -> list[torch.Tensor]:
        _, out = self.splits(case, rank)
        return list(case.values(rank, (sum(out),)).split(out))

    def call(self, case, group, rank, asynchronous):
        into, out = self.splits(case, rank)
        whole = torch.empty(sum(into), dtype=case.dtype)
        mine = torch.cat(self.parts(case, rank))
        work = dist.all_to_all_single(whole, mine, into, out, group, asynchronous)
        return self.works(work, asynchronous), [whole]

    def expected(self, case, rank):
        return [torch.cat([self.parts(case, each)[rank] for each in range(case.size)])]


class AllToAll(AllToAllSingle):
    gloo = False

    def call(self, case, group, rank, asynchronous):
        into, _ = self.splits(case, rank)
        buffers = [torch.empty(size, dtype=case.dtype) for size in into]
        work = dist.all_to_all(buffers, self.parts(case, rank), group, asynchronous)
        return self.works(work, asynchronous), buffers

    def expected(self, case, rank):
        return [self.parts(case, each)[rank] for each in range(case.size)]


class Gather(Kind):
    def call(self, case, group, rank, asynchronous):
        mine = case.laid_out(case.values(rank))
        buffers = [torch.zeros_like(case.values(0)) for _ in range(case.size)]
        given = buffers if rank == case.root else None
        work = dist.gather(mine, given, self.root(case, group), group, asynchronous)
        return self.works(work, asynchronous), given or []

    def expected(self, case, rank):
        every = [case.values(each) for each in range(case.size)]
        return every if rank == case.root else []


class Scatter(Kind):
    def call(self, case, group, rank, asynchronous):
        buffer = case.laid_out(torch.zeros_like(case.values(0)))
        given = [case.values(case.root, salt=each) for each in range(case.size)]
        given = given if rank == case.root else None
        work = dist.scatter(buffer, given, self.root(case, group), group, asynchronous)
        return self.works(work, asynchronous), [buffer]

    def expected(self, case, rank):
        return [case.values(case.root, salt=rank)]


class Barrier(Kind):
    def call(self, case, group, rank, asynchronous):
        return self.works(dist.barrier(group, asynchronous), asynchronous), []

    def expected(self, case, rank):
        return []


class Ring(Kind):
    """A message to the next rank and one from the previous, as one batch."""

    def call(self, case, group, rank, asynchronous):
        buffer = case.laid_out(torch.zeros_like(case.values(0)))
        after = dist.get_global_rank(group, (rank + 1) % case.size)
        before = dist.get_global_rank(group, (rank - 1) % case.size)
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, case.laid_out(case.values(rank)), after, group, case.tag),
                dist.P2POp(dist.irecv, buffer, before, group, case.tag),
            ]
        )
        if not asynchronous:
            for work in works:
                work.wait()
        return works if asynchronous else [], [buffer]

    def gloo_can(self, case):
        """gloo allows neither messages to oneself nor empty ones."""
        return case.size > 1 and math.prod(case.shape) > 0 and super().gloo_can(case)

    def expected(self, case, rank):
        return [case.values((rank - 1) % case.size)]


class FromAnybody(Ring):
    """Every other rank sends to the root, which receives from any rank."""

    def call(self, case, group, rank, asynchronous):
        if rank != case.root:
            target = self.root(case, group)
            work = dist.isend(case.values(rank), target, group=group, tag=case.tag)
            if not asynchronous:
                work.wait()
            return [work] if asynchronous else [], []
        heard = {}
        for _ in range(case.size - 1):
            buffer = case.laid_out(torch.zeros_like(case.values(0)))
            heard[dist.recv(buffer, group=group, tag=case.tag)] = buffer
        return [], [heard[each] for each in sorted(heard)]

    def expected(self, case, rank):
        others = [each for each in range(case.size) if each != case.root]
        return [case.values(each) for each in others] if rank == case.root else []


class CooAllReduce(Kind):
    """The sum of sparse tensors, not coalesced, with different entries on each rank."""

    reduces = True

    def tensor(self, case: Case, rank: int) -> torch.Tensor:
        rows, columns = 7, 5
        drawn = random.Random(f"{case.seed} {case.number} {rank}")
        indices = [[drawn.randrange(rows) for _ in range(drawn.randrange(6))]]
        values = torch.randint(
            -4, 5, (len(indices[0]), columns), generator=case.generator(rank)
        ).to(case.dtype)
        where = torch.tensor(indices).view(1, -1)
        return torch.sparse_coo_tensor(where, values, (rows, columns), check_invariants=True)

    def call(self, case, group, rank, asynchronous):
        tensor = self.tensor(case, rank)
        work = dist.all_reduce(tensor, ReduceOp.SUM, group, asynchronous)
        return self.works(work, asynchronous), [tensor]

    def gloo_can(self, case):
        return case.dtype in (torch.float32, torch.float64, torch.int64, torch.int32)

    def expected(self, case, rank):
        return [sum(self.tensor(case, each).to_dense() for each in range(case.size))]


KINDS: dict[str, Kind] = {
    "all_reduce": AllReduce(),
    "all_reduce_coo": CooAllReduce(),
    "reduce": Reduce(),
    "broadcast": Broadcast(),
    "all_gather": AllGather(),
    "all_gather_uneven": UnevenAllGather(),
    "all_gather_into_tensor": AllGatherIntoTensor(),
    "reduce_scatter": ReduceScatter(),
    "reduce_scatter_tensor": ReduceScatterTensor(),
    "all_to_all": AllToAll(),
    "all_to_all_single": AllToAllSingle(),
    "gather": Gather(),
    "scatter": Scatter(),
    "barrier": Barrier(),
    "ring": Ring(),
    "from_anybody": FromAnybody(),
}


def drawn_case(draw: random.Random, seed: int, number: int, size: int) -> Case:
    """The next case, in a group of that size."""
    name = draw.choice(list(KINDS))
    kind = KINDS[name]
    if name == "all_reduce_coo":
        dtype = draw.choice((torch.float32, torch.float64, torch.int32, torch.int64))
    else:
        dtype = draw.choice(REDUCED if kind.reduces else MOVED)
    # Some are above 64 KiB, where other algorithms begin.
    numel = draw.choice((0, 1, 2, 7, 64, 1000, 5000, draw.choice((20_000, 70_001))))
    shape = draw.choice(((numel,), (1, numel), (numel, 1), (2, numel // 2), (numel // 3, 3)))
    if draw.random() < 0.1:
        shape = ()
    longest = max(1, numel // 4)
    splits = tuple(
        tuple(draw.choice((0, longest, draw.randrange(longest + 1))) for _ in range(size))
        for _ in range(size)
    )
    return Case(
        seed=seed,
        number=number,
        kind=name,
        size=size,
        dtype=dtype,
        op=draw.choice(ops_of(dtype)) if kind.reduces and name != "all_reduce_coo" else "SUM",
        shape=shape,
        layout=draw.choice(("contiguous", "contiguous", "strided", "transposed", "offset")),
        exact=draw.random() < 0.5 or name == "all_reduce_coo",
        root=draw.randrange(size),
        splits=splits,
        # A receive from any rank waits in the call.
        asynchronous=name != "from_anybody" and draw.random() < 0.7,
    )


def difference(case: Case, got: list[torch.Tensor], wanted: list[torch.Tensor]) -> str:
    """Empty if they are equal: bit for bit, except for sums that were rounded."""
    if len(got) != len(wanted):
        return f"{len(got)} tensors, expected {len(wanted)}"
    for at, (one, other) in enumerate(zip(got, wanted, strict=True)):
        one = one.to_dense() if one.is_sparse else one
        other = other.to_dense() if other.is_sparse else other
        if one.shape != other.shape or one.dtype != other.dtype:
            return f"tensor {at}: {one.shape} {one.dtype}, not {other.shape} {other.dtype}"
        if case.dtype.is_floating_point and KINDS[case.kind].reduces:
            tolerance = 0.0 if case.exact and case.op != "AVG" else 8 * torch.finfo(one.dtype).eps
            same = torch.allclose(one.double(), other.double(), rtol=tolerance, atol=tolerance)
        else:
            same = torch.equal(raw(one), raw(other))
        if not same:
            return f"tensor {at}: {one.flatten()[:8]}, expected {other.flatten()[:8]}"
    return ""


def raw(tensor: torch.Tensor) -> torch.Tensor:
    # A tensor of at most one element counts as contiguous with any stride, which view() rejects.
    return tensor.contiguous().as_strided((tensor.numel(),), (1,)).view(torch.uint8)
