"""Real ranks that count the bytes they send over loopback. counted() starts them by torchrun."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

SIDE, MATRICES = 512, 4  # matrices that an OuterOptimizer exchanges

Request = dict[str, Any]


def counted(requests: Sequence[Request], ranks: int = 2) -> list[dict[str, Any]]:
    """Do each request; return the average bytes that ranks sent, and for how many elements.

    {"list": arguments of sparse_all_reduce, "d": elements}: one call with normally distributed
    values; with "alike" true, plus values that all ranks share.
    {"outer": arguments of OuterOptimizer}: one round with normally distributed gradients; "side"
    and "matrices" give the size and number of square matrices. "rounds": the rounds over which the
    mean is taken.
    """
    with tempfile.TemporaryDirectory() as folder:
        into = pathlib.Path(folder) / "counted.json"
        launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
        subprocess.run(
            [sys.executable, *launch, __file__, json.dumps(requests), str(into)],
            check=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        found: list[dict[str, Any]] = json.loads(into.read_text())
        return found


def _of_list(arguments: dict[str, Any], d: int, alike: bool) -> dict[str, Any]:
    import gtopk

    if arguments.get("wire") == "lossless":
        arguments = {**arguments, "wire": None}
    draws = torch.Generator().manual_seed(dist.get_rank())
    shared = torch.Generator().manual_seed(1000)
    for _ in range(2):  # the first call also exchanges what ranks must know of each other
        tensor = torch.randn(d, generator=draws)
        if alike:
            tensor += torch.randn(d, generator=shared)
        residual = torch.zeros(d)
        before = gtopk.stats()["bytes_sent"]
        gtopk.sparse_all_reduce(tensor, residual=residual, **arguments)
        sent = gtopk.stats()["bytes_sent"] - before
    return {"bytes": sent, "elements": d}


def _of_round(arguments: dict[str, Any], side: int, matrices: int, rounds: int) -> dict[str, Any]:
    import gtopk

    draws = torch.Generator().manual_seed(dist.get_rank())
    layers = [torch.nn.Linear(side, side, bias=False) for _ in range(matrices)]
    model = torch.nn.Sequential(*layers)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    outer = gtopk.OuterOptimizer(inner, model, **arguments)
    steps, counts = arguments.get("inner_steps", 1), []
    for step in range(1, (1 + rounds) * steps + 2):
        for each in model.parameters():
            each.grad = torch.randn(each.shape, generator=draws)
        outer.step()
        # This is one step after a round's end, when no fragment is being exchanged.
        if step in (steps + 1, (1 + rounds) * steps + 1):
            counts.append(outer.stats()["bytes_sent"])
    return {"bytes": (counts[1] - counts[0]) / rounds, "elements": matrices * side * side}


def main(requests: Sequence[Request], into: pathlib.Path) -> None:
    dist.init_process_group("gtopk")
    found = []
    for each in requests:
        if "list" in each:
            found.append(_of_list(each["list"], each["d"], each.get("alike", False)))
        else:
            net = each.get("side", SIDE), each.get("matrices", MATRICES)
            found.append(_of_round(each["outer"], *net, each.get("rounds", 4)))
        sent = torch.tensor([found[-1]["bytes"]], dtype=torch.float64)
        dist.all_reduce(sent)
        found[-1]["bytes"] = sent.item() / dist.get_world_size()
    if dist.get_rank() == 0:
        into.write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), pathlib.Path(sys.argv[2]))
