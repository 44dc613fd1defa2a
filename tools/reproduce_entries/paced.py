"""A replica whose steps take a set time: it sleeps instead of computing. utilised() starts it.

Sleeping needs no processor, so that four replicas on two cores are as fast as on four machines.
"""

from __future__ import annotations

import json
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

LAYERS = 6
WITHOUT = 32  # number of steps that measure the time without a link

Request = dict[str, Any]
Result = dict[str, Any]


def utilised(request: Request, rate: str, hosts: int = 4) -> Result:
    """Run the request on hosts with links of this rate; return rank 0's record.

    side: side of each of six square matrices; pace: seconds of a step; moved: how many of the
    matrices have gradients; preset, arguments: arguments of the OuterOptimizer, or "dense" for an
    all-reduce of the gradients in each step; steps: how many steps are timed.
    """
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
    from netlab import Lab

    with tempfile.TemporaryDirectory() as folder, Lab(hosts, rate) as lab:
        into = pathlib.Path(folder) / "record.json"
        command = [sys.executable, __file__, json.dumps(request), str(into)]
        outcome = lab.run(command, timeout=900, env={"OMP_NUM_THREADS": "1"})
        if not outcome.ok:
            raise RuntimeError(outcome.report())
        found: Result = json.loads(into.read_text(encoding="utf-8"))
        return found | {"cores_busy": round(outcome.machine_cpu_share, 2)}


class Paced(torch.optim.SGD):
    """SGD whose step() lasts `pace` seconds."""

    def __init__(self, model: nn.Module, pace: float) -> None:
        super().__init__(model.parameters(), lr=1e-3)
        self.pace = pace

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        ends = time.monotonic() + self.pace
        super().step(closure)
        time.sleep(max(0.0, ends - time.monotonic()))


def seconds_of(steps: int, step: Callable[[], None]) -> float:
    """Return the average seconds per step."""
    began = time.monotonic()
    for _ in range(steps):
        step()
    return (time.monotonic() - began) / steps


def measured(request: Request) -> Result:
    """Return the seconds of a step without and with the link, and what each sends and computes."""
    import gtopk

    torch.manual_seed(dist.get_rank())
    side, steps = request["side"], request["steps"]
    model = nn.Sequential(*(nn.Linear(side, side, bias=False) for _ in range(LAYERS)))
    for layer in model[: request["moved"]]:
        layer.weight.grad = torch.randn(side, side)
    paced = Paced(model, request["pace"])
    without = seconds_of(WITHOUT, paced.step)
    warm, step = 1, paced.step
    if request["preset"] == "dense":
        flat = torch.zeros(LAYERS * side * side)

        def step() -> None:
            paced.step()
            dist.all_reduce(flat, dist.ReduceOp.AVG)

    else:
        outer = gtopk.OuterOptimizer(paced, model, request["preset"], **request["arguments"])
        warm, step = request["arguments"]["inner_steps"], outer.step
    seconds_of(warm, step)
    sent, cpu = gtopk.stats()["bytes_sent"], time.process_time()
    taken = seconds_of(steps, step)
    return {
        "parameters": LAYERS * side * side,
        "without": without,
        "step": taken,
        "bytes": (gtopk.stats()["bytes_sent"] - sent) / steps,
        "cpu_seconds": (time.process_time() - cpu) / steps,
    }


def main(request: Request, into: pathlib.Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gtopk")
    found = measured(request)
    if dist.get_rank() == 0:
        into.write_text(json.dumps(found), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), pathlib.Path(sys.argv[2]))
