"""Benchmark: a training step with each way to use gtopk, in turn within one run.

The net is an MLP whose layers differ in size. With --net paced, its layers wait instead of
computing, as if an accelerator computed, which leaves the cores to the exchanges. With --net
paced-gpt-0.8m, the layers have the parameters of that GPT in examples/convergence. Every setting
has its own model, optimizer and state; a turn runs one step of each, in rotating order. It prints
the wall time, the time that the core spent selecting and committing, and a prediction: the step
without any exchange (`no_sync`) plus the planner's prediction for an exchange that starts when the
backward has ended ("model"), or for the remaining part of exchanges that overlap the backward
("layer-wise").

Runs on every rank with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set; `tools/bench/run ways
--hosts 4 --rate 100mbit` starts it. Rank 0 prints the rows.
"""

from __future__ import annotations

import argparse
import itertools
import pathlib
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist
from gtopk.state.adaptive import Piece, Stopwatch, choose
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import gtopk

SIZES = (256, 1536, 512, 256, 1024, 64)
PACE = 60  # nanoseconds of backward per parameter; 0.1 s for all
WARM_UP = 9  # steps; adaptive densities are chosen in the eighth


class Pause(torch.autograd.Function):
    """A layer that computes elsewhere: its backward waits and returns a gradient of the weights."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, weight: nn.Parameter, layer: Paced) -> torch.Tensor:
        """Waits for half of the backward's time."""
        ctx.layer = layer
        time.sleep(layer.seconds / 2)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        """Waits."""
        time.sleep(ctx.layer.seconds)
        return gradient, next(ctx.layer.gradients), None


class Paced(nn.Module):
    """A layer with a parameter of this shape; each of its elements takes the given time."""

    def __init__(self, shape: tuple[int, ...], pace: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(shape))
        self.seconds = pace * self.weight.numel()
        generator = torch.Generator().manual_seed(shape[0] + dist.get_rank())
        noise = [torch.randn(shape, generator=generator) for _ in range(4)]
        self.gradients = itertools.cycle(noise)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the input."""
        return Pause.apply(x, self.weight, self)


def shapes_of_gpt(size: str) -> list[tuple[int, ...]]:
    """Return the shapes of the parameters of examples/convergence's GPT of this size."""
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples/convergence"))
    from gpt import GPT, SIZES, corpus

    with torch.device("meta"):
        return [tuple(each.shape) for each in GPT(corpus().characters, SIZES[size]).parameters()]


def network(net: str, scale: int, pace: float) -> tuple[nn.Module, tuple[int, ...]]:
    """Returns a model and the shape of one input.

    layers: 1.6 million parameters in five layers of 66 to 787 thousand. paced: the same, with
    sizes times `scale`, and layers whose backward takes `pace` seconds for a parameter.
    paced-gpt-…: one such layer for each parameter of that GPT. demo: tools/demo's net.
    """
    torch.manual_seed(0)
    if net == "demo":
        sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples/digits"))
        from model import ResNet20

        return ResNet20(), (1, 8, 8)
    if net.startswith("paced"):
        sizes = itertools.pairwise(scale * each for each in SIZES)
        shapes = [(after, before) for before, after in sizes]
        if net != "paced":
            shapes = shapes_of_gpt(net.removeprefix("paced-"))
        return nn.Sequential(*(Paced(each, pace) for each in shapes)), (1,)
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(SIZES):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1]), SIZES[:1]


def wrapped(way: Way) -> DistributedDataParallel:
    """Wrap in DDP with small buckets, because parameters of one bucket become ready together."""
    return DistributedDataParallel(way.net, bucket_cap_mb=way.bucket)


class Way:
    """One setting: forward, backward and step."""

    def __init__(self, options: argparse.Namespace, make: Callable[[Way], None]) -> None:
        """Prepare a setting. make: sets `call`, `optimizer` and everything else that differs."""
        self.net, shape = network(options.net, options.scale, 1e-9 * options.pace)
        self.bucket = options.bucket
        self.elements = sum(each.numel() for each in self.net.parameters())
        paced = options.net.startswith("paced")
        self.x = torch.randn(options.batch, *shape, requires_grad=paced)
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-3)
        self.call: nn.Module = self.net
        self.state: gtopk.SparseState | None = None
        self.stopwatch: Stopwatch | None = None
        self.scaler: torch.amp.GradScaler | None = None
        self.seconds: list[float] = []
        self.core: list[float] = []
        self.threads: list[Threads] = []
        self.sent: list[int] = []
        make(self)

    def step(self) -> None:
        """Times one step."""
        dist.barrier()
        core, threads, sent = _core_seconds(), _threads(), _sent()
        begin = time.perf_counter()
        self.optimizer.zero_grad()
        loss = self.call(self.x).square().mean()
        if self.scaler is None:
            loss.backward()
            self.optimizer.step()
        else:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.seconds.append(time.perf_counter() - begin)
        self.core.append(_core_seconds() - core)
        self.sent.append(_sent() - sent)
        spent = zip(threads, _threads(), strict=True)
        self.threads.append(Threads(*(after - before for before, after in spent)))


def _core_seconds() -> float:
    now = gtopk.stats()
    return float(now["compress_seconds"] + now["commit_seconds"])


def _sent() -> int:
    """Return the bytes that have left this host, with all headers."""
    lines = pathlib.Path("/proc/net/dev").read_text(encoding="ascii").splitlines()[2:]
    links = [line.split(":") for line in lines]
    return sum(int(numbers.split()[8]) for name, numbers in links if name.strip() != "lo")


class Threads(NamedTuple):
    """Seconds of threads in a step: on a core, and ready while others were on it."""

    trains: float
    trains_late: float
    gtopk: float
    gtopk_late: float


def _threads() -> Threads:
    """Return them for this thread, which also runs the backward, and for all of gtopk's."""
    mine = late = core = core_late = 0
    for task in pathlib.Path("/proc/self/task").iterdir():
        try:
            name = (task / "comm").read_text(encoding="ascii")
            ran, waited, _ = map(int, (task / "schedstat").read_text(encoding="ascii").split())
        except OSError:  # the thread has ended
            continue
        if int(task.name) == threading.get_native_id():
            mine, late = ran, waited
        elif name.startswith("gtopk"):
            core, core_late = core + ran, core_late + waited
    return Threads(*(each / 1e9 for each in (mine, late, core, core_late)))


def alone(way: Way) -> None:
    """Computes and exchanges nothing."""
    ddp = wrapped(way)

    class Quiet(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with ddp.no_sync():
                return ddp(x)

    way.call = Quiet()


def dense(way: Way) -> None:
    """Uses DDP's own exchange."""
    way.call = wrapped(way)


def attached(**arguments: object) -> Callable[[Way], None]:
    """Use gtopk.attach."""

    def make(way: Way) -> None:
        way.call = wrapped(way)
        way.state = gtopk.attach(way.call, **arguments)

    return make


def over_gloo(connections: int) -> Callable[[Way], None]:
    """Use DDP over gloo; a bucket is cut into parts, each with its own group."""

    def make(way: Way) -> None:
        groups = [dist.new_group(backend="gloo") for _ in range(connections)]
        way.call = DistributedDataParallel(
            way.net, bucket_cap_mb=way.bucket, process_group=groups[0]
        )

        def hook(_, bucket):  # without annotations: DDP rejects strings
            parts = bucket.buffer().div_(dist.get_world_size()).chunk(connections)
            works = [
                dist.all_reduce(part, group=group, async_op=True).get_future()
                for part, group in zip(parts, groups, strict=False)
            ]
            return torch.futures.collect_all(works).then(lambda _: bucket.buffer())

        if connections > 1:
            way.call.register_comm_hook(None, hook)

    return make


def power_sgd(rank: int) -> Callable[[Way], None]:
    """Use torch's PowerSGD, over gtopk, for all matrices."""

    def make(way: Way) -> None:
        way.call = wrapped(way)
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=rank, start_powerSGD_iter=2, min_compression_rate=1
        )
        way.call.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

    return make


def timed(density: float) -> Callable[[Way], None]:
    """Use gtopk.attach with a unit per parameter, and record when each is complete."""

    def make(way: Way) -> None:
        way.call = wrapped(way)
        parameters = way.call.named_parameters()
        way.state = state = gtopk.SparseState(parameters, density, unit="parameter")
        way.stopwatch = stopwatch = Stopwatch(len(state.units))
        of_parameters = dict(way.net.named_parameters())
        numbers = {
            id(of_parameters[name.removeprefix("module.")]): number
            for number, unit in enumerate(state.units)
            for name in unit.names
        }

        def hook(state, bucket):  # without annotations: DDP rejects strings
            if bucket.index() == 0:
                stopwatch.begin()
            for parameter in bucket.parameters():
                stopwatch.complete(numbers[id(parameter)])
            future = gtopk.sparse_hook(state, bucket)
            if bucket.is_last():
                stopwatch.end()
            return future

        way.call.register_comm_hook(state, hook)

    return make


def scaled(density: float) -> Callable[[Way], None]:
    """Use the same with a loss scale."""

    def make(way: Way) -> None:
        way.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        attached(density=density, scaler=way.scaler)(way)

    return make


def optimized(density: float) -> Callable[[Way], None]:
    """Use gtopk.DistributedOptimizer."""

    def make(way: Way) -> None:
        way.optimizer = gtopk.DistributedOptimizer(way.optimizer, way.net, density)
        way.state = way.optimizer.sparse_state

    return make


def sharded(density: float) -> Callable[[Way], None]:
    """Use gtopk.fsdp_hook with every rank a replica, to show its cost without a fast group."""

    def make(way: Way) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        names = ("replicate", "shard")
        mesh = init_device_mesh("cpu", (dist.get_world_size(), 1), mesh_dim_names=names)
        way.call = fully_shard(way.net, mesh=mesh["shard"])
        way.optimizer = torch.optim.SGD(way.net.parameters(), lr=1e-3)
        way.state = gtopk.fsdp_hook(way.net, mesh["replicate"], density=density)

    return make


def predictions(ways: dict[str, Way], density: float) -> dict[str, float]:
    """Return the predicted milliseconds of exchange that the backward does not hide. Collective."""

    def cost(elements: int, kind: object, at: float) -> float:
        planned = gtopk.plan(elements, density=at)
        assert planned is not None
        return planned["predictions"]["gtopk"]["seconds"]

    left = {}
    for name in ("model", "default unit"):
        if name in ways:
            units = ways[name].state.units
            left[name] = sum(cost(unit.selected_numel, None, density) for unit in units)
    if "layer-wise" in ways:
        # The times at which layers are ready were measured in the last steps, on the slowest rank.
        state = ways["layer-wise"].state
        ready = torch.tensor(ways["layer-wise"].stopwatch.ready(), dtype=torch.float64)
        dist.all_reduce(ready, dist.ReduceOp.MAX)
        pieces = [
            Piece(unit.selected_numel, unit.dtype, at)
            for unit, at in zip(state.units, ready.tolist(), strict=True)
        ]
        last = choose(pieces, 0.0, cost, (density, density), merges=False)[-1]
        left["layer-wise"] = last.starts + last.seconds - max(each.ready for each in pieces)
    if "adaptive" in ways:
        layers = ways["adaptive"].state.layers
        end = layers[-1].starts + layers[-1].seconds
        left["adaptive"] = end - max(each.ready for each in layers)
    return {name: 1e3 * seconds for name, seconds in left.items()}


def main() -> None:
    """Measures all settings."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("-n", "--turns", type=int, default=21)
    parser.add_argument("--density", type=float, default=0.01)
    parser.add_argument("--ways", nargs="+", help="these; default: all of gtopk on float32")
    parser.add_argument("--bucket", type=float, default=0.1, help="bucket_cap_mb of DDP")
    nets = ("layers", "paced", "paced-gpt-0.1m", "paced-gpt-0.8m", "demo")
    parser.add_argument("--net", choices=nets, default="layers")
    parser.add_argument("--scale", type=int, default=1, help="of the sizes of --net paced")
    parser.add_argument("--pace", type=float, default=PACE, help="ns of backward for a parameter")
    parser.add_argument("--batch", type=int, default=256)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gtopk")
    density = arguments.density
    bounds = (density / 4, 4 * density)
    makers = {
        "no_sync": alone,
        "dense": dense,
        "model": attached(density=density, unit="model"),
        "layer-wise": timed(density),
        "adaptive": attached(density="adaptive", density_bounds=bounds, unit="parameter"),
        "default unit": attached(density=density),
        "scaler": scaled(density),
        "optimizer": optimized(density),
        "fsdp_hook": sharded(density),
    }
    others = {
        "gloo": over_gloo(1),
        "gloo-4": over_gloo(4),
        "powersgd-1": power_sgd(1),
        "powersgd-4": power_sgd(4),
        "topk": attached(density=density, algorithm="topk"),
        **{wire: attached(algorithm="dense", wire=wire) for wire in ("bf16", "int8", "4bit")},
        "ternary": attached(algorithm="dense", wire="ternary", error_decay=0),
    }
    if arguments.ways:
        makers |= others
    ways = {
        name: Way(arguments, make)
        for name, make in makers.items()
        if not arguments.ways or name in ("no_sync", *arguments.ways)
    }
    for turn in range(arguments.turns + WARM_UP):
        names = list(ways)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            ways[name].step()
    for way in ways.values():
        way.seconds, way.core = way.seconds[WARM_UP:], way.core[WARM_UP:]
        way.threads, way.sent = way.threads[WARM_UP:], way.sent[WARM_UP:]
    slowest = torch.tensor([way.seconds for way in ways.values()])
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    left = predictions(ways, density)
    if dist.get_rank() == 0:
        compute = 1e3 * statistics.median(slowest[0].tolist())
        print(f"# {ways['no_sync'].elements} parameters, density {density}")
        heads = ("p50", "min", "core p50", "core min", "KB sent", "predicted")
        print(f"{'ms a step, slowest rank':24} " + " ".join(f"{each:>9}" for each in heads))
        for (name, way), seconds in zip(ways.items(), slowest.tolist(), strict=True):
            times = (statistics.median(seconds), min(seconds))
            core = (statistics.median(way.core), min(way.core))
            said = f"{compute + left[name]:9.1f}" if name in left else ""
            told = " ".join(f"{1e3 * each:9.2f}" for each in (*times, *core))
            sent = f"{statistics.median(way.sent) / 1e3:9.1f}"
            print(f"{name:24} {told} {sent} {said}")
        if "model" in ways:
            of_turns = dict(zip(ways, slowest.tolist(), strict=True))
            for name in ("layer-wise", "adaptive"):
                pairs = zip(of_turns.get(name, ()), of_turns["model"], strict=False)
                ratios = sorted(one / other for one, other in pairs)
                if ratios:
                    middle = statistics.median(ratios)
                    print(
                        f"# {name} over model, turn by turn: median {middle:.2f}, "
                        f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
                    )
        print("# of rank 0, medians: on a core, and ready to be while others were")
        print("{:24} {:>9} {:>9} {:>9} {:>9}".format("ms a step", *Threads._fields))
        for name, way in ways.items():
            medians = (1e3 * statistics.median(each) for each in zip(*way.threads, strict=True))
            print(f"{name:24} {' '.join(f'{each:9.2f}' for each in medians)}")
        for layer in ways["adaptive"].state.layers if "adaptive" in ways else ():
            print(f"# {layer.names[0]} (+{len(layer.names) - 1}): density {layer.density:.4g}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
