"""How an error of an exchange reaches the user, along every way."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from gtopk.core import _native
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import gtopk
from helpers.ranks import Rank, RankError, RankSet
from helpers.training import Plain, Training, network

pytestmark = pytest.mark.loopback

BLAMED = 2  # the last of three ranks
Step = Callable[[], object]
Change = Callable[[], None]


def nothing() -> None:
    pass


# --- ways: a step of training or a call, and what makes this rank's differ from the others'


def ddp(me: Rank, group: dist.ProcessGroup) -> tuple[Step, Change]:
    training = Training(me.rank, group=group)
    state = training.hooked(density=0.1, group=group)

    def change() -> None:
        state.density = 0.3

    return training.step, change


def ddp_without_hook(me: Rank, group: dist.ProcessGroup) -> tuple[Step, Change]:
    return Training(me.rank, group=group).step, nothing


def builtin_hook(me: Rank, group: dist.ProcessGroup) -> tuple[Step, Change]:
    training = Training(me.rank, group=group)
    training.ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    return training.step, nothing


def optimizer(me: Rank, group: dist.ProcessGroup) -> tuple[Step, Change]:
    training = Plain(me.rank, density=0.1, group=group)

    def change() -> None:
        training.state.density = 0.3

    return training.step, change


def optimizer_with_passes(me: Rank, group: dist.ProcessGroup) -> tuple[Step, Change]:
    """A backward less than passes: synchronize() exchanges what there is, and raises."""
    training = Plain(me.rank, density=0.1, group=group, backward_passes_per_step=2)

    def change() -> None:
        training.state.density = 0.3

    def step() -> None:
        training.loss().backward()
        training.optimizer.step()
        training.optimizer.zero_grad()

    return step, change


def fsdp(me: Rank, group: dist.ProcessGroup) -> tuple[Step, Change]:
    mesh = init_device_mesh("cpu", (me.size, 1), mesh_dim_names=("replicate", "shard"))
    model = fully_shard(network(), mesh=mesh["shard"])
    state = gtopk.fsdp_hook(model, group, density=0.1)

    def change() -> None:
        state.density = 0.3

    return lambda: model(torch.ones(4, 24)).sum().backward(), change


def call(me: Rank, group: dist.ProcessGroup, end: Callable[[dist.Work], object]) -> tuple:
    k = [5]

    def step() -> object:
        return end(gtopk.sparse_all_reduce(torch.ones(100), k=k[0], group=group, async_op=True))

    return step, lambda: k.append(k.pop() + 1)


def work(me: Rank, group: dist.ProcessGroup) -> tuple[Step, Change]:
    return call(me, group, lambda started: started.wait())


def future(me: Rank, group: dist.ProcessGroup) -> tuple[Step, Change]:
    return call(me, group, lambda started: started.get_future().wait())


WAYS = (ddp, ddp_without_hook, builtin_hook, optimizer, optimizer_with_passes, fsdp, work, future)


# --- causes


def check_text(raised: BaseException, blamed: int) -> None:
    assert type(raised) is dist.DistBackendError, repr(raised)
    text = str(raised)
    assert text.startswith("gtopk: "), text
    assert text.count("gtopk: ") == 1, text
    assert f"rank {blamed}" in text, text
    for noise in ("DistBackendError", "callback", "At:", ".py"):
        assert noise not in text, text


def check_mismatch(me: Rank, way: str) -> None:
    step, change = globals()[way](me, dist.group.WORLD)
    step()
    if change is nothing:
        return
    if me.rank == BLAMED:
        change()
    with pytest.raises(RuntimeError, match="ranks differ") as raised:
        step()
    check_text(raised.value, BLAMED)
    dist.barrier()


def check_timeout(me: Rank, way: str) -> None:
    group = dist.new_group(timeout=timedelta(seconds=3))
    step, _ = globals()[way](me, group)
    step()
    if me.rank == BLAMED:
        me.store.wait([f"{way}/timed out/{rank}" for rank in range(BLAMED)])
        return
    with pytest.raises(RuntimeError, match="timed out") as raised:
        step()
    check_text(raised.value, BLAMED)
    me.store.set(f"{way}/timed out/{me.rank}", "yes")


def check_death(me: Rank, way: str) -> None:
    """The blamed rank is killed in the middle of a backward, or before its call."""
    step, _ = globals()[way](me, dist.group.WORLD)
    step()
    if me.rank == BLAMED:
        seen = []

        def die(*_: object) -> None:
            seen.append(1)
            if len(seen) == 4:
                os.kill(os.getpid(), signal.SIGKILL)

        nn.modules.module.register_module_full_backward_hook(die)
        if way in ("work", "future"):
            os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(RuntimeError) as raised:
        step()
    check_text(raised.value, BLAMED)


def test_ranks_that_differ_are_named_by_the_error_itself():
    with RankSet(3) as ranks:
        for way in WAYS:
            ranks.run(check_mismatch, way.__name__)


def test_a_rank_that_does_not_come_is_named_by_the_error_itself():
    """Three ways, as each waits for its group's timeout; all ways are tried with a death, below."""
    with RankSet(3) as ranks:
        for way in (ddp, fsdp, work):
            ranks.run(check_timeout, way.__name__)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_rank_that_dies_is_named_by_the_error_itself(way: Callable):
    with RankSet(3) as ranks, pytest.raises(RankError) as raised:
        ranks.run(check_death, way.__name__)
    assert [line for line in str(raised.value).splitlines() if line.startswith("---")] == [
        f"--- rank {BLAMED}: ended with code -9"
    ], raised.value


# --- other errors


def check_other_errors_keep_their_class(me: Rank) -> None:
    model = nn.Linear(4, 4)
    wrapped = nn.parallel.DistributedDataParallel(model)
    state = gtopk.SparseState(model.named_parameters(), density=0.1 if me.rank else 0.2)
    wrapped.register_comm_hook(state, gtopk.sparse_hook)
    with pytest.raises(ValueError, match=r"^gtopk: .*density") as raised:
        wrapped(torch.ones(2, 4)).sum().backward()
    assert str(raised.value).count("gtopk: ") == 1
    dist.barrier()
    for error in (ValueError, NotImplementedError, RuntimeError, dist.DistBackendError):
        mine: torch.futures.Future = torch.futures.Future()
        chained = mine.then(lambda done: done)
        _native.fail(mine, error("gtopk: what went wrong"))
        with pytest.raises(error, match=r"^gtopk: what went wrong$"):
            mine.wait()
        assert chained.done()


def check_hooks_of_torch(me: Rank, name: str) -> None:
    """What their callbacks raise is a RuntimeError, by torch's doing; its text has ours."""
    group = dist.new_group(timeout=timedelta(seconds=3))
    training = Training(me.rank, group=group)
    if name == "PowerSGD":
        state = powerSGD_hook.PowerSGDState(group, 1, start_powerSGD_iter=2, min_compression_rate=1)
        training.ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    else:
        training.ddp.register_comm_hook(group, getattr(default_hooks, name))
    training.steps(3)
    if me.rank != BLAMED:
        with pytest.raises(RuntimeError, match=rf"gtopk: all_reduce.*timed out.*rank {BLAMED}"):
            training.step()
        me.store.set(f"{name}/timed out/{me.rank}", "yes")
    else:
        me.store.wait([f"{name}/timed out/{rank}" for rank in range(BLAMED)])


def test_errors_of_torchs_own_hooks_contain_ours():
    with RankSet(3) as ranks:
        for name in ("allreduce_hook", "fp16_compress_hook", "PowerSGD"):
            ranks.run(check_hooks_of_torch, name)


def test_other_errors_keep_their_class():
    with RankSet(3) as ranks:
        ranks.run(check_other_errors_keep_their_class)
