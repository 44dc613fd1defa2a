"""Trains ResNet-20 on digits with DDP, over any backend, dense or sparse.

    torchrun --nproc-per-node 4 examples/digits/train.py --backend gtopk --density 0.01

Uses torch and gtopk as a user would; must not know the network lab or the comparison that
tools/demo makes of several runs. A user's own script needs only the lines that name gtopk.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys

import torch
import torch.distributed as dist
from data import Batches, load_fold
from measure import StepClock, parameter_hash
from model import ResNet20
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import OneCycleLR
from tqdm import tqdm

# 256 KiB is a quarter of this model: gradients leave while backward still computes others.
UNIT_BYTES = 256 * 2**10
# Densities at the start, as parts of the training: (density, share of all steps).
WARMUP = ((0.25, 0.1), (0.05, 0.2))


def train(options: argparse.Namespace) -> dict:
    """Runs this rank's part of one training and returns its record (see measure.StepClock)."""
    torch.set_num_threads(options.threads)
    dist.init_process_group(options.backend)
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(options.seed)
    split = load_fold(options.fold)
    batches = Batches(split, options.batch, rank, world, options.seed)
    steps = batches.per_epoch() * options.epochs

    model = ResNet20()
    ddp = DistributedDataParallel(model, broadcast_buffers=False, bucket_cap_mb=UNIT_BYTES / 2**20)
    phases = [("", steps)]
    if options.density:
        import gtopk

        warmup = [(density, round(share * steps)) for density, share in WARMUP]
        gtopk.attach(ddp, options.density, unit=UNIT_BYTES, warmup=warmup)
        last = ("", steps - sum(count for _, count in warmup))
        phases = [*((f"warm-up at {density}", count) for density, count in warmup), last]
    elif options.wire:
        import gtopk

        gtopk.attach(ddp, algorithm="dense", wire=options.wire, unit=UNIT_BYTES)

    optimizer = torch.optim.SGD(
        ddp.parameters(), lr=options.lr, momentum=0.9, weight_decay=5e-4, nesterov=True
    )
    schedule = OneCycleLR(optimizer, options.lr, total_steps=steps, pct_start=0.2)
    clock = StepClock(model, phases, options.interface, engine_seconds(options.backend))

    dist.barrier()
    progress = tqdm(
        total=steps,
        desc=options.name,
        unit="step",
        disable=rank != 0,
        mininterval=0.2 if sys.stderr.isatty() else 10,
    )
    clock.start()
    for _ in range(options.epochs):
        for images, labels in batches.epoch():
            clock.step_begins()
            loss = functional.cross_entropy(ddp(images), labels)
            optimizer.zero_grad()
            loss.backward()
            clock.gradients_reduced()
            optimizer.step()
            schedule.step()
            clock.step_ends(loss.item())
            progress.update()
            progress.set_postfix_str(f"loss {loss.item():.3f}", refresh=False)
    clock.stop()
    progress.close()

    average_batch_statistics(model)
    record = {
        "rank": rank,
        "world": world,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "accuracy": accuracy(model, split.test_images, split.test_labels),
        "hashes": gathered(parameter_hash(model)),
        **clock.record(),
    }
    dist.destroy_process_group()
    return record


def engine_seconds(backend: str):
    """A function that returns the seconds the engine has spent selecting and committing so far."""
    if backend != "gtopk":
        return lambda: 0.0
    import gtopk

    def compressing() -> float:
        stats = gtopk.stats()
        return stats["compress_seconds"] + stats["commit_seconds"]

    return compressing


def average_batch_statistics(model: torch.nn.Module) -> None:
    """Averages batch normalisation's running statistics over all ranks' data."""
    buffers = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
    flat = torch.cat([buffer.flatten() for buffer in buffers])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for buffer, mean in zip(buffers, flat.split([b.numel() for b in buffers]), strict=True):
        buffer.copy_(mean.view_as(buffer))


def accuracy(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """The share (0…1) of images whose digit is recognised."""
    model.eval()
    with torch.no_grad():
        return (model(images).argmax(1) == labels).float().mean().item()


def gathered(value: str) -> list[str]:
    """Every rank's value, in rank order."""
    values: list = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of one run."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--backend", default="gtopk", help="of init_process_group")
    parser.add_argument("--density", type=float, default=0.0, help="0: dense")
    parser.add_argument("--wire", help="if dense, how every gradient is rounded, such as 4bit")
    parser.add_argument("--epochs", type=int, default=24)
    parser.add_argument("--batch", type=int, default=32, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--fold", type=int, default=0, help="0 to 4: which fifth is the test")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="of torch, per rank")
    parser.add_argument("--name", default="train", help="of the progress bar")
    parser.add_argument("--interface", help="network interface whose bytes are counted")
    parser.add_argument("--records", type=pathlib.Path, help="folder for rank<r>.json")
    return parser.parse_args(arguments)


def main() -> None:
    """Trains, prints the result, and writes the record where asked."""
    options = parse()
    record = train(options)
    if options.records:
        options.records.mkdir(parents=True, exist_ok=True)
        path = options.records / f"rank{record['rank']}.json"
        path.write_text(json.dumps(record), encoding="utf-8")
    if record["rank"] == 0 and not options.records:
        equal = "equal" if len(set(record["hashes"])) == 1 else "NOT equal"
        print(
            f"accuracy {record['accuracy']:.2%}, loss {record['losses'][-1]:.4f}, "
            f"{record['seconds']:.1f} s, parameters bitwise {equal} on {record['world']} ranks"
        )


if __name__ == "__main__":
    main()
