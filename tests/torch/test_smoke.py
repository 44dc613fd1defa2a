"""A little of everything, for every version of torch (tools/test --label smoke).

What a change of c10d would break first: virtual functions called in place of others, errors that
lose their type on the way to Python, futures, groups behind torch's own wrapper.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from gtopk.core.groups import backend_of
from gtopk.ops.options import SparseOptions
from torch.nn.parallel import DistributedDataParallel

import gtopk
from helpers.ranks import Rank, RankSet, run_script
from helpers.training import batch, flat, network

pytestmark = [pytest.mark.loopback, pytest.mark.smoke]


def check_every_virtual_function_is_the_one_that_was_called(me: Rank) -> None:
    tensor = torch.full((5,), 1.0 + me.rank)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [3.0] * 5
    dist.broadcast(tensor.mul_(1 + me.rank), 1)
    assert tensor.tolist() == [6.0] * 5
    mine = torch.full((2,), float(me.rank))
    listed = [torch.empty(2) for _ in range(2)]
    dist.all_gather(listed, mine)
    whole = torch.empty(4)
    dist.all_gather_into_tensor(whole, mine)
    assert whole.tolist() == torch.cat(listed).tolist() == [0.0, 0.0, 1.0, 1.0]
    other = 1 - me.rank
    sent = dist.isend(mine, other, tag=3)
    assert dist.recv(listed[0], other, tag=3) == other
    sent.wait()
    assert listed[0].tolist() == [float(other)] * 2
    dist.barrier()


def check_works_and_futures(me: Rank) -> None:
    work = dist.all_reduce(torch.ones(3), async_op=True)
    assert work.get_future().then(lambda done: done.value()[0].tolist()).wait() == [2.0] * 3
    assert work.wait()
    assert work.is_completed()
    sparse = gtopk.sparse_all_reduce(torch.ones(3), k=3, async_op=True)
    assert sparse.get_future().wait()[0].tolist() == [2.0] * 3


def check_sparse_all_reduce(me: Rank) -> None:
    tensor, residual = torch.tensor([1.0, 0.0, 4.0 * me.rank]), torch.zeros(3)
    gtopk.sparse_all_reduce(tensor, k=1, residual=residual)
    assert tensor.tolist() == [0.0, 0.0, 4.0]
    assert residual.tolist() == [1.0, 0.0, 0.0]
    counted = gtopk.stats()
    assert counted["operations"] > 0
    assert counted["bytes_sent"] > 0
    assert counted["exchange_seconds"] > 0
    assert "tcp" in counted["transport"] or "shared" in counted["transport"], counted


def check_training_with_the_hook(me: Rank) -> None:
    model = network()
    ddp = DistributedDataParallel(model)
    state = gtopk.attach(ddp, density=0.05)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    before = flat(model)
    for step in range(3):
        x, labels = batch(me.rank, step)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(ddp(x), labels).backward()
        optimizer.step()
    after = flat(model)
    assert state.step == 3
    assert not torch.equal(before, after)
    both = [torch.empty_like(after) for _ in range(2)]
    dist.all_gather(both, after)
    assert torch.equal(*both)


def check_errors_keep_their_types(me: Rank) -> None:
    with pytest.raises(dist.DistBackendError, match=r"ranks differ.*d=[34].*d=[34]"):
        dist.all_reduce(torch.ones(3 + me.rank))
    with pytest.raises(dist.DistBackendError, match=r"ranks differ.*k=[12].*k=[12]"):
        gtopk.sparse_all_reduce(torch.ones(3), k=1 + me.rank)
    with pytest.raises(ValueError, match="bfloat16 or float16, not complex64"):
        backend_of(None).sparse_all_reduce(
            [torch.ones(3, dtype=torch.cfloat)], SparseOptions(k=1, wire="raw")
        )
    with pytest.raises(NotImplementedError, match="broadcast of a Sparse"):
        backend_of(None).broadcast([torch.ones(4).to_sparse()], dist.BroadcastOptions())
    backend = backend_of(None)
    assert backend.get_error().name == "SUCCESS"
    dist.distributed_c10d._get_default_group().monitored_barrier()


def check_a_group_that_is_aborted(me: Rank) -> None:
    group = dist.new_group(timeout=timedelta(seconds=30))
    backend = backend_of(group)
    assert backend is backend_of(group)
    backend.set_timeout(timedelta(seconds=20))
    dist.barrier(group)
    if me.rank == 0:
        backend.abort()
    with pytest.raises(dist.DistBackendError, match="abort"):
        dist.barrier(group)
    assert backend.get_error().name == "COMM_ERROR"
    dist.barrier()


def test_on_two_ranks(two: RankSet, check) -> None:
    two.run(check)


def test_behind_the_wrapper_that_debugging_puts_around_a_backend():
    script = """
import torch, torch.distributed as dist, gtopk
dist.init_process_group("gtopk", store=dist.HashStore(), rank=0, world_size=1)
from gtopk.core.groups import backend_of
from gtopk.ops.options import SparseOptions
wrapper = dist.group.WORLD._get_backend(torch.device("cpu"))
print(type(wrapper).__name__)
tensor = torch.tensor([3.0, 1.0])
dist.all_reduce(tensor)
gtopk.sparse_all_reduce(tensor, k=1)
print(tensor.tolist(), gtopk.stats()["operations"], backend_of(None).get_error().name)
"""
    done = run_script(script, TORCH_DISTRIBUTED_DEBUG="DETAIL")
    said = "_ProcessGroupWrapper\n[3.0, 0.0] 2 SUCCESS\n"
    assert (done.returncode, done.stdout) == (0, said), done.stderr
