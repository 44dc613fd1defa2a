"""What a backward costs at each density on your machines, to choose a warm-up.

    torchrun --nproc-per-node 2 examples/ladder.py --parameters 10e6 --steps 7

It trains nothing: the model is all parameters and almost no arithmetic, so that the exchange is
what is measured. All settings take turns within one run. Prints rank 0's medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gtopk

LAYERS = 8
# The hook at a density, the hook in a dense phase of the warm-up, and no hook at all.
SETTINGS = ("dense DDP", "dense", 0.25, 0.1, 0.05, 0.01, 0.001)


class Weights(nn.Module):
    """Parameters that are each read once in the forward pass and once in the backward."""

    def __init__(self, parameters: int) -> None:
        """parameters: their number, in LAYERS equal parts."""
        super().__init__()
        torch.manual_seed(0)
        self.each = nn.ParameterList(torch.randn(parameters // LAYERS) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A scalar that depends on every parameter."""
        return sum((weight * x).sum() for weight in self.each)


def backward_of(parameters: int, setting: str | float) -> Callable[[], float]:
    """A function that runs a step and returns the seconds its backward took."""
    model = Weights(parameters)
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    if setting == "dense":
        gtopk.attach(ddp, warmup=[("dense", 10**9)])
    elif isinstance(setting, float):
        gtopk.attach(ddp, setting)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    data = torch.Generator().manual_seed(dist.get_rank())

    def step() -> float:
        optimizer.zero_grad()
        loss = ddp(torch.randn(parameters // LAYERS, generator=data))
        dist.barrier()
        begin = time.perf_counter()
        loss.backward()
        seconds = time.perf_counter() - begin
        optimizer.step()
        return seconds

    return step


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--parameters", type=float, default=10e6)
    parser.add_argument("--steps", type=int, default=7, help="of each setting that are counted")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gtopk")
    steps = {each: backward_of(int(options.parameters), each) for each in SETTINGS}
    for step in (*steps.values(), *steps.values()):  # DDP rebuilds its buckets after the first one
        step()
    seconds: dict[str | float, list[float]] = {each: [] for each in SETTINGS}
    for _ in range(options.steps):
        for setting, step in steps.items():
            seconds[setting].append(step())
    if dist.get_rank() == 0:
        print(f"backward of {options.parameters:,.0f} parameters, {dist.get_world_size()} ranks")
        for setting, each in seconds.items():
            print(f"{setting!s:>10} {1000 * statistics.median(each):8.1f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
