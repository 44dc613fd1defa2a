"""Trains the small GPT of examples/convergence by replicas that meet every H steps.

    torchrun --nproc-per-node 4 examples/outer/train.py --preset sparseloco --inner-steps 10
    python tools/netlab run --hosts 4 --rate 50mbit -- python examples/outer/train.py

The first steps are dense: every gradient is averaged. Then each replica trains alone between the
rounds of gtopk.OuterOptimizer (docs/outer.md). `--preset dense` is DDP, for comparison. A bar shows
loss, bytes sent and the share of time that exchanges take; the last line is JSON.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import pathlib
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from gtopk.training.outer_presets import PRESETS
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

import gtopk

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "convergence"))
from gpt import SIZES
from tasks import TASKS, Task

DENSE = "dense"
# Overrides of a preset that the command line takes, and their types.
NUMBERS = {
    **dict.fromkeys(("inner_steps", "k", "fragments", "delay"), int),
    **dict.fromkeys(("lr", "momentum", "error_decay", "subtract", "density", "mix"), float),
    **dict.fromkeys(("wire", "mean"), str),
}


State = dict[str, torch.Tensor]


def average_gradients(model: torch.nn.Module) -> None:
    """What DDP does, in one message, and without hooks that the later steps would run into."""
    gradients = [each.grad for each in model.parameters() if each.grad is not None]
    flat = torch.cat([each.flatten() for each in gradients])
    dist.all_reduce(flat, dist.ReduceOp.AVG)
    for gradient, mean in zip(gradients, flat.split([x.numel() for x in gradients]), strict=True):
        gradient.copy_(mean.view_as(gradient))


def shared_state(model: torch.nn.Module, outer: gtopk.OuterOptimizer | None) -> State:
    """A copy of the model's state, with the parameters that all replicas share."""
    state = {name: each.detach().clone() for name, each in model.state_dict().items()}
    return state if outer is None else state | outer.shared_parameters()


def all_equal(state: State) -> bool:
    """Whether all replicas have these bits."""
    digest = hashlib.sha256()
    for each in state.values():
        digest.update(each.contiguous().numpy().tobytes())
    found: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(found, digest.hexdigest())
    return len(set(found)) == 1


def scored(task: Task, states: list[tuple[int, float, State]]) -> list[tuple[int, float, float]]:
    """Step, held-out loss and seconds of each of these states; leaves the last in the model."""
    points = []
    for step, seconds, state in states:
        task.model.load_state_dict(state)
        points.append((step, task.score(task.model), seconds))
    return points


def train(task: Task, options: argparse.Namespace) -> dict[str, Any]:
    """Does all steps; returns what is to be reported."""
    model, outer = task.model, None
    inner_lr = task.lr if options.inner_lr is None else options.inner_lr
    inner, schedule = task.recipe.optimizer(model.parameters(), inner_lr, options.steps)
    for each in model.parameters():
        dist.broadcast(each.detach(), 0)
    net, dense_steps = model, round(options.dense * options.steps)
    if options.preset == DENSE:
        net, dense_steps = DistributedDataParallel(model), options.steps
    first = dist.get_rank() == 0
    bar = tqdm(
        range(1, options.steps + 1),
        desc=options.name,
        disable=not first,
        mininterval=1 if sys.stderr.isatty() else 10,
    )
    dist.barrier()
    start = began = time.monotonic()
    sent, states = gtopk.stats()["bytes_sent"], []
    for step in bar:
        if step == dense_steps + 1:
            outer = gtopk.OuterOptimizer(inner, model, options.preset, **options.overrides)
            began, sent = time.monotonic(), gtopk.stats()["bytes_sent"]
        inputs, targets = task.batch()
        loss = task.loss(net(inputs), targets)
        inner.zero_grad()
        loss.backward()
        if outer is None and net is model:
            average_gradients(model)
        task.recipe.clip_(model.parameters())
        (inner if outer is None else outer).step()
        schedule.step()
        if first and (step % max(1, options.steps // 20) == 0 or step == options.steps):
            # Scored later: here the other replicas would wait.
            states.append((step, time.monotonic() - start, shared_state(model, outer)))
        megabytes = (gtopk.stats()["bytes_sent"] - sent) / 1e6
        shown = {"loss": f"{loss.item():.3f}", "MB": f"{megabytes:.2f}"}
        if outer is not None:
            found = outer.stats()
            shown["links"] = f"{found['exchange_seconds'] / found['seconds']:.0%}"
        bar.set_postfix(shown, refresh=False)
    ended = time.monotonic()
    equal = all_equal(shared_state(model, outer))
    points = scored(task, states)
    return {
        "preset": options.preset,
        **options.overrides,
        "inner_lr": inner_lr,
        "parameters": sum(each.numel() for each in model.parameters()),
        "dense_steps": dense_steps,
        "held_out_loss": points[-1][1] if points else None,
        "megabytes_after_the_start": megabytes,
        "seconds_after_the_start": ended - began,
        "seconds": ended - start,
        "cpu_seconds": time.process_time(),
        "shared_parameters_equal": equal,
        "outer": None if outer is None else outer.stats(),
        "points": points,
    }


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    presets = (DENSE, *PRESETS)
    parser.add_argument("--preset", choices=presets, default="sparseloco")
    parser.add_argument("--size", choices=SIZES, default="gpt-0.1m")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--inner-lr", type=float, help="of AdamW; the task's if not given")
    parser.add_argument("--dense", type=float, default=0.2, help="share of dense steps at first")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shards", choices=("alike", "skewed"), default="alike")
    parser.add_argument("--name", help="of the progress bar")
    parser.add_argument("--record", type=pathlib.Path, help="file for the report, not printed then")
    for name, kind in NUMBERS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, help="overrides the preset's")
    options = parser.parse_args(arguments)
    given = {name: getattr(options, name) for name in NUMBERS}
    options.overrides = {name: value for name, value in given.items() if value is not None}
    return options


def main() -> None:
    """Trains; rank 0 prints the report or writes it."""
    options = parse()
    torch.set_num_threads(1)
    dist.init_process_group("gtopk")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    report = train(TASKS[options.size](rank, ranks, options.shards, options.seed), options)
    if rank == 0:
        text = json.dumps({"replicas": ranks, **report})
        if options.record:
            options.record.write_text(text + "\n", encoding="utf-8")
        else:
            print(text, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
