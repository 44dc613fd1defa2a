"""Trains the small GPT by replicas that may be killed, stopped and started again at any time.

    torchft_lighthouse --min_replicas 2 &
    TORCHFT_LIGHTHOUSE=http://localhost:29510 python examples/outer/replicas.py 0 &
    TORCHFT_LIGHTHOUSE=http://localhost:29510 python examples/outer/replicas.py 1

Each replica is a process with a number of its own; torchft's manager tells them ahead of each
exchange who takes part. After each a replica prints a line of JSON.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import pathlib
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from gtopk.training.outer_presets import PRESETS
from torchft import Manager

import gtopk

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "convergence"))
from gpt import SIZES
from tasks import TASKS, Task

PARTS = 8  # of the text: a replica has the one of its number


def manager_of(group: gtopk.ReplicaGroup, replica: int, store: dist.TCPStore) -> Manager:
    """torchft's manager of a replica that is one process; the store is its own."""
    return Manager(
        pg=group,
        state_dict=dict,  # nothing: OuterOptimizer brings replicas up to date itself
        load_state_dict=lambda _: None,
        use_async_quorum=False,
        min_replica_size=2,
        quorum_timeout=timedelta(minutes=5),
        replica_id=f"replica_{replica}",
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
    )


def exchanged(task: Task, outer: gtopk.OuterOptimizer, group: gtopk.ReplicaGroup) -> dict[str, Any]:
    """What there is to say after an exchange. The first replica of the group also scores."""
    shared = outer.shared_parameters()
    digest = hashlib.sha256()
    for each in shared.values():
        digest.update(each.contiguous().numpy().tobytes())
    found = {"step": outer.steps, "replicas": group.size(), "digest": digest.hexdigest()[:16]}
    if group.rank() == 0:
        own = {name: each.detach().clone() for name, each in task.model.state_dict().items()}
        task.model.load_state_dict(own | shared)
        found["held_out_loss"] = task.score(task.model)
        task.model.load_state_dict(own)
    return found


def train(options: argparse.Namespace) -> None:
    """Trains until the shared parameters have had all steps."""
    task = TASKS[options.size](options.replica, PARTS, "alike", options.seed)
    inner, _ = task.recipe.optimizer(task.model.parameters(), options.inner_lr, options.steps)
    group = gtopk.ReplicaGroup(timedelta(seconds=60))
    outer = gtopk.OuterOptimizer(
        inner, task.model, options.preset, group=group, inner_steps=options.inner_steps
    )
    if options.wait:
        print(json.dumps({"step": 0, "ready": True}), flush=True)
        input()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = manager_of(group, options.replica, store)
    while outer.steps < options.steps:
        exchanges = outer.exchanges_next
        if exchanges:
            manager.start_quorum()  # configures the group if its members have changed
        rate = options.inner_lr * task.recipe.factor(outer.steps, options.steps)
        for each in inner.param_groups:  # one that joins has the others' rate
            each["lr"] = rate
        inputs, targets = task.batch()
        outer.zero_grad()
        task.loss(task.model(inputs), targets).backward()
        task.recipe.clip_(task.model.parameters())
        try:
            outer.step()
        except dist.DistBackendError as error:  # the next step repeats the exchange
            manager.report_error(error)
            print(json.dumps({"step": outer.steps, "error": str(error)}), flush=True)
        if exchanges and manager.should_commit():
            print(json.dumps(exchanged(task, outer, group)), flush=True)
    manager.shutdown()
    group.shutdown()


def main() -> None:
    """Reads the options and trains."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("replica", type=int, help=f"its number, from 0 to {PARTS - 1}")
    parser.add_argument("--preset", choices=PRESETS, default="diloco")
    parser.add_argument("--inner-steps", type=int, default=20)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--inner-lr", type=float, default=4e-3, help="of AdamW")
    parser.add_argument("--size", choices=SIZES, default="gpt-0.1m")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--wait", action="store_true", help="for a line of input before it joins")
    options = parser.parse_args()
    if not 0 <= options.replica < PARTS:
        parser.error(f"replica {options.replica}: expected 0 to {PARTS - 1}")
    torch.set_num_threads(1)
    train(options)


if __name__ == "__main__":
    main()
