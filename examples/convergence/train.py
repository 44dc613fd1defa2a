"""Trains small nets with every way to exchange gradients.

    torchrun --nproc-per-node 4 examples/convergence/train.py --task digits --into runs.jsonl
    python examples/convergence/table.py runs.jsonl

Every run is one line of JSON: score, loss, bytes sent, seconds of forward, backward and exchange
(means over the ranks), and how good the selections were, over the steps.
Runs that the file already has are skipped, so a stopped series can be continued. Real ranks and
DDP: nothing is simulated (sweep.py does that). For a seed, all methods see the same nets, batches
and optimizer.
"""

from __future__ import annotations

import argparse
import itertools
import pathlib
import time
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.distributed as dist
from methods import METHODS, OWN_MOMENTUM, PLAIN
from recipes import WARMUP
from records import Run, append, read, run_of
from tasks import SHARDS, TASKS, Task
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

import gtopk

DENSE_SHARE = WARMUP  # of all steps, at the start


class Quality(NamedTuple):
    """How good a step's selection was over all ranks; acc is gradient plus residual.

    With m entries delivered, `recall` is the share of the first m of the sum of all acc that are
    among them; `contraction` is |sum - delivered|^2 / |sum|^2, at most 1 - m/d for a selection no
    worse than a random one; `residual` is the root of the mean of the ranks' |residual|^2.
    """

    recall: float
    contraction: float
    residual: float


def quality(model: torch.nn.Module, state: gtopk.SparseState) -> Quality:
    """Measures the step whose results are in .grad. Collective and dense: not for every step."""
    delivered, left = [], []
    for name, parameter in model.named_parameters():
        residual = state.residual(name)
        if residual is not None:
            delivered.append(parameter.grad.detach().flatten() * dist.get_world_size())
            left.append(residual.flatten().clone())
    result, rests = torch.cat(delivered), torch.cat(left)
    square = rests.square().sum()
    dist.all_reduce(square, dist.ReduceOp.AVG)
    dist.all_reduce(rests)
    acc = result + rests
    found = result != 0
    first = acc.abs().topk(max(1, int(found.sum()))).indices
    return Quality(
        found[first].double().mean().item(),
        (rests.square().sum() / acc.square().sum()).item(),
        square.sqrt().item(),
    )


def train(run: Run, task: Task) -> dict:
    """Does one run; returns its record, the same on all ranks."""
    # Parameters of one DDP bucket become ready together: "adaptive" must see layers apart.
    ddp = DistributedDataParallel(
        task.model, bucket_cap_mb=0.01 if run.method == "adaptive" else None
    )
    dense_steps = round(DENSE_SHARE * run.steps)
    state = METHODS[run.method](ddp, run.density or 1.0, dense_steps)
    optimizer, schedule = task.recipe.optimizer(
        ddp.parameters(), run.lr or task.lr, run.steps, momentum=run.method not in OWN_MOMENTUM
    )
    before, points = gtopk.stats()["bytes_sent"], []
    sampling, seconds = 0, 0.0  # bytes sent by the measuring itself; of the steps, without it
    for step in range(1, run.steps + 1):
        begin = time.perf_counter()
        inputs, targets = task.batch()
        loss = task.loss(ddp(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        seconds += time.perf_counter() - begin
        if step % max(1, run.steps // 12) == 0 or step == run.steps:
            sent = gtopk.stats()["bytes_sent"]
            means = torch.tensor([loss.item(), float(sent - before - sampling), seconds])
            dist.all_reduce(means, dist.ReduceOp.AVG)
            named = zip(("loss", "bytes", "seconds"), means.tolist(), strict=True)
            point = {"step": step, **dict(named)}
            if state is not None and step > dense_steps:
                point |= quality(task.model, state)._asdict()
            task.recipe.clip_(ddp.parameters())
            optimizer.step()
            score = torch.zeros(1, dtype=torch.float64)
            if dist.get_rank() == 0:  # replicas are alike, and may share their processors
                score.fill_(task.score(task.model))
            dist.broadcast(score, 0)
            points.append(point | {"score": score.item()})
            dist.barrier()
            sampling += gtopk.stats()["bytes_sent"] - sent
        else:
            task.recipe.clip_(ddp.parameters())
            optimizer.step()
        schedule.step()
    about = {"unit": task.unit, "lower": task.lower, **task.about}
    record = {**run._asdict(), **about, "points": points}
    if run.method == "adaptive" and state is not None:
        record["layers"] = [layer._asdict() for layer in state.layers]
    return record


def runs(options: argparse.Namespace, ranks: int) -> Iterator[Run]:
    """The requested runs, seed by seed, so that partial results are comparable."""
    for seed, shards in itertools.product(range(options.seeds), options.shards):
        for method in options.methods:
            for density in (None,) if method in PLAIN else options.densities:
                for lr in options.lrs:
                    yield Run(options.task, ranks, shards, method, density, seed, options.steps, lr)


def done(into: pathlib.Path) -> set[Run]:
    """The runs that the file already has."""
    return {run_of(record) for record in read(into)}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--task", choices=TASKS, default="digits")
    parser.add_argument("--shards", nargs="+", choices=SHARDS, default=list(SHARDS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--densities", nargs="+", type=float, default=[0.01, 0.001])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--lrs", nargs="+", type=float, default=[None], help="the task's")
    parser.add_argument("--into", type=pathlib.Path, required=True, help="file of JSON lines")
    return parser.parse_args(arguments)


def main() -> None:
    """Does the requested runs that are not in the file yet."""
    options = parse()
    torch.set_num_threads(1)
    dist.init_process_group("gtopk")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    found = [done(options.into) if rank == 0 else None]
    dist.broadcast_object_list(found)
    left = [run for run in runs(options, ranks) if run not in found[0]]
    for run in tqdm(left, disable=rank != 0, mininterval=10):
        record = train(run, TASKS[run.task](rank, ranks, run.shards, run.seed))
        if rank == 0:
            append(options.into, record)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
