"""Backends that are not registered."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from gtopk.core.groups import backend_of
from gtopk.ops.options import SparseOptions

import gtopk
from helpers.ranks import Rank, RankSet

pytestmark = pytest.mark.loopback

LONG = timedelta(seconds=30)


def check_a_backend_of_its_own(me: Rank) -> None:
    assert not dist.is_initialized()
    backend = gtopk.create_backend(me.store, me.rank, me.size, LONG)
    assert (backend.rank(), backend.size(), backend.name()) == (me.rank, me.size, "gtopk")
    tensor = torch.full((5,), float(me.rank))
    backend.allreduce([tensor]).wait()
    assert tensor.tolist() == [1.0] * 5
    buffers = [[torch.empty(2) for _ in range(me.size)]]
    backend.allgather(buffers, [torch.full((2,), float(me.rank))]).wait()
    assert [buffer.tolist() for buffer in buffers[0]] == [[0.0] * 2, [1.0] * 2]
    other = 1 - me.rank
    sent = backend.send([tensor], other, 3)
    backend.recv([torch.empty(5)], other, 3).wait()
    sent.wait()
    gradient = torch.tensor([0.0, 1.0 + me.rank, 0.5])
    backend.sparse_all_reduce([gradient], SparseOptions(k=1)).wait()
    assert gradient.tolist() == [0.0, 3.0, 0.0]
    for pieces, words in (
        ([], "takes at least one tensor, given none"),
        ([torch.ones(2), torch.ones(2).double()], "takes one dtype, given float and double"),
        ([torch.ones(4)[::2], torch.ones(2)], "takes contiguous tensors, given one of sizes"),
    ):
        with pytest.raises(ValueError, match=words):
            backend.sparse_all_reduce(pieces, SparseOptions(k=1))
    assert backend.statistics()["operations"] >= 5
    assert backend.get_error().name == "SUCCESS"
    backend.shutdown()
    with pytest.raises(dist.DistBackendError, match="destroyed"):
        backend.barrier().wait()


def check_several_names_in_one_store_and_a_name_again(me: Rank) -> None:
    for _ in range(2):
        both = [gtopk.create_backend(me.store, me.rank, me.size, name=n) for n in ("a", "b")]
        for backend in both:
            backend.barrier().wait()
        for backend in both:
            backend.shutdown()


def check_abort_from_another_thread_frees_who_waits(me: Rank) -> None:
    backend = gtopk.create_backend(me.store, me.rank, me.size, LONG, name="aborted")
    if me.rank == 0:
        work = backend.allreduce([torch.ones(3)])
        aborting = threading.Thread(target=backend.abort)
        aborting.start()
        with pytest.raises(dist.DistBackendError, match=r"abort.*waiting for rank 1 \(host"):
            work.wait()
        aborting.join()
    else:
        with pytest.raises(dist.DistBackendError, match=r"aborted by rank 0 \(host"):
            backend.recv([torch.ones(3)], 0, 1).wait()
    assert backend.get_error().name == "COMM_ERROR"
    backend.shutdown()


def check_whose_backend_it_is(me: Rank) -> None:
    backend = gtopk.create_backend(me.store, me.rank, me.size, LONG, name="whose")
    assert isinstance(backend, gtopk.Backend)
    backend.shutdown()
    dist.init_process_group("gtopk", store=me.store, rank=me.rank, world_size=me.size)
    with pytest.raises(NotImplementedError, match="pg_options are not implemented, given _Options"):
        dist.new_group(pg_options=dist.ProcessGroupGloo._Options())
    gloo = dist.new_group(backend="gloo")
    cpu = torch.device("cpu")
    assert isinstance(dist.group.WORLD._get_backend(cpu), gtopk.Backend)
    assert isinstance(backend_of(None), gtopk.Backend)
    assert not isinstance(gloo._get_backend(cpu), gtopk.Backend)
    assert not isinstance("gtopk", gtopk.Backend)
    dist.destroy_process_group()


def check_bad_calls(me: Rank) -> None:
    with pytest.raises(ValueError, match=r"rank must be in \[0, 2\) in a group of 2, given 2"):
        gtopk.create_backend(me.store, 2, 2)
    with pytest.raises(TypeError, match="create_backend"):
        gtopk.Backend()


def test_on_two_ranks_without_a_group(two_apart: RankSet, check) -> None:
    two_apart.run(check)
