"""Collectives that torch.compile traces, or breaks its graph at; and pipelines
of point-to-point messages, compared with gloo.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed import pipelining

import gtopk
from helpers.ranks import Rank, RankSet
from helpers.training import batch, flat, network, replicas_are_bitwise_equal

pytestmark = pytest.mark.loopback

BACKENDS = ("gtopk", "gloo")
WIDTH, BATCH, CHUNKS = 8, 16, 4


def drawn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def step(tensor: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Each collective that DTensor and FSDP trace."""
    summed = functional.all_reduce(tensor * 2, "sum", group)
    part = functional.reduce_scatter_tensor(summed.relu(), "avg", 0, group)
    whole = functional.all_gather_tensor(part + 1, 0, group)
    swapped = functional.all_to_all_single(whole, None, None, group)
    return functional.wait_tensor(swapped).sin()


def check_a_compiled_step(me: Rank) -> None:
    results = {}
    for name in BACKENDS:
        group = dist.new_group(backend=name)
        # torch.compile traces this graph; generating machine code is not tested here.
        compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
        mine = drawn(me.rank, 8, 3)
        results[name] = [compiled(mine, group), step(mine, group)]
    for each in (*results["gtopk"], results["gloo"][1]):
        torch.testing.assert_close(each, results["gloo"][0])


def check_a_sparse_all_reduce_breaks_the_graph(me: Rank) -> None:
    def doubles(tensor: torch.Tensor) -> torch.Tensor:
        gradient = tensor * 2
        gtopk.sparse_all_reduce(gradient, density=1.0)
        return gradient + 1

    def reduces_gradients(tensor: torch.Tensor) -> torch.Tensor:
        leaf = tensor.detach().requires_grad_()
        (leaf * tensor).sum().backward()
        gtopk.sparse_all_reduce(leaf.grad, density=1.0, op=dist.ReduceOp.AVG)
        return leaf.grad

    for function in (doubles, reduces_gradients):
        compiled = torch.compile(function, backend="aot_eager")
        for number in range(2):
            mine = drawn(10 * number + me.rank, 8, 3)
            torch.testing.assert_close(compiled(mine), function(mine))
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="not part of a graph"):
        torch.compile(doubles, backend="aot_eager", fullgraph=True)(mine)
    dist.barrier()


def check_a_compiled_training_step(me: Rank) -> None:
    """Forward, backward, exchange and update in one function, under each way to train."""

    def trained(hooked: bool, compiles: bool) -> torch.Tensor:
        model = network()
        plain = torch.optim.SGD(model.parameters(), lr=0.05)
        if hooked:
            called, optimizer = nn.parallel.DistributedDataParallel(model), plain
            gtopk.attach(called, density=0.1)
        else:
            called, optimizer = model, gtopk.DistributedOptimizer(plain, model, density=0.1)

        def train_step(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(called(x), labels)
            loss.backward()
            optimizer.step()
            return loss

        if compiles:
            train_step = torch.compile(train_step, backend="aot_eager")
        for number in range(3):
            train_step(*batch(me.rank, number))
        assert replicas_are_bitwise_equal(model)
        return flat(model)

    for hooked in (True, False):
        torch._dynamo.reset()
        torch.testing.assert_close(trained(hooked, True), trained(hooked, False))


def parts(count: int) -> list[nn.Module]:
    torch.manual_seed(5)
    return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(count)]


def train(me: Rank, name: str, schedule: str) -> list[torch.Tensor]:
    """Two steps of a pipeline with a stage on each rank: losses, then this stage's gradients."""
    group = dist.new_group(backend=name)
    module = parts(me.size)[me.rank]
    stage = pipelining.PipelineStage(
        module,
        me.rank,
        me.size,
        torch.device("cpu"),
        input_args=(drawn(0, BATCH // CHUNKS, WIDTH),),
        group=group,
    )
    loss = nn.functional.mse_loss
    runs = getattr(pipelining, schedule)(stage, CHUNKS, loss_fn=loss, scale_grads=False)
    results = []
    for number in range(2):
        losses: list[torch.Tensor] = []
        if me.rank == 0:
            runs.step(drawn(10 + number, BATCH, WIDTH))
        elif me.rank == me.size - 1:
            runs.step(target=drawn(20 + number, BATCH, WIDTH), losses=losses)
        else:
            runs.step()
        results += [loss.detach() for loss in losses]
    return results + [parameter.grad for parameter in module.parameters()]


def alone(me: Rank) -> list[torch.Tensor]:
    """The same on one rank: gradients of this rank's stage."""
    stages = parts(me.size)
    whole = nn.Sequential(*stages)
    for number in range(2):
        for given, wanted in zip(
            drawn(10 + number, BATCH, WIDTH).chunk(CHUNKS),
            drawn(20 + number, BATCH, WIDTH).chunk(CHUNKS),
            strict=True,
        ):
            nn.functional.mse_loss(whole(given), wanted).backward()
    return [parameter.grad for parameter in stages[me.rank].parameters()]


def pipelines_are_as_over_gloo(me: Rank) -> None:
    for schedule in ("ScheduleGPipe", "Schedule1F1B"):
        mine, theirs = (train(me, name, schedule) for name in BACKENDS)
        assert len(mine) == len(theirs)
        assert all(map(torch.equal, mine, theirs))
        assert (len(mine) > 2) == (me.rank == me.size - 1)
        torch.testing.assert_close(mine[-2:], alone(me))


def test_on_two_ranks(two: RankSet, check) -> None:
    two.run(check)


def test_pipelines_on_four_ranks(four: RankSet) -> None:
    four.run(pipelines_are_as_over_gloo)
