"""Tensors whose memory is replaced meanwhile, is gone, or never was there."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from gtopk.core.groups import backend_of
from torch._subclasses.fake_tensor import FakeTensorMode

import gtopk
from helpers.collectives import usable
from helpers.ranks import Rank, RankSet

pytestmark = pytest.mark.loopback

ELEMENTS = 16384  # few enough for malloc() to hand memory that is free out again at once


def check_memory_is_kept_until_the_end(me: Rank) -> None:
    """A tensor may be given other memory meanwhile, as by `parameter.data = ...`."""
    after, before = (me.rank + 1) % me.size, (me.rank - 1) % me.size
    calls = (
        lambda x: [dist.all_reduce(x, async_op=True)],
        lambda x: [dist.isend(x, after), dist.irecv(torch.empty(ELEMENTS), before)],
        lambda x: [dist.reduce_scatter_tensor(torch.empty(len(x) // me.size), x, async_op=True)],
    )
    for number, call in enumerate(calls):
        if me.rank != 0:
            me.store.wait([f"memory/{number}"])
        tensor = torch.ones(ELEMENTS)
        works, address = call(tensor), tensor.data_ptr()
        if me.rank == 0:
            tensor.data = torch.zeros(1)
            others = [torch.zeros(ELEMENTS) for _ in range(100)]
            taken = address in [each.data_ptr() for each in others]
            me.store.set(f"memory/{number}", "yes")
            assert not taken
        for work in works:
            work.wait()
    usable(me)


def check_tensors_without_memory_are_refused(me: Rank) -> None:
    freed = torch.ones(8)
    freed.untyped_storage().resize_(0)  # as FSDP does to parameters between their uses
    with FakeTensorMode():
        fake = torch.ones(8)
    backend = backend_of(None)
    options = dist.AllreduceOptions()
    for tensor in (freed, fake):
        for call in (
            lambda tensor=tensor: backend.allreduce([tensor], options),
            lambda tensor=tensor: backend.broadcast([tensor], dist.BroadcastOptions()),
            lambda tensor=tensor: backend.send([tensor], (me.rank + 1) % me.size, 0),
            lambda tensor=tensor: gtopk.sparse_all_reduce(tensor, k=1),
            lambda tensor=tensor: gtopk.sparse_all_reduce(torch.ones(8), k=1, residual=tensor),
        ):
            with pytest.raises(ValueError, match="has no memory"):
                call()
    empty = torch.ones(0)
    empty.untyped_storage().resize_(0)
    dist.all_reduce(empty)
    usable(me)


def test_on_four_ranks(four: RankSet, check) -> None:
    four.run(check)
