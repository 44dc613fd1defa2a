"""Entry `demo-ablation`: DeMo's transform and its subtraction, on a small GPT."""

from __future__ import annotations

import functools
import statistics
from typing import TYPE_CHECKING

import torch
from tasks import TASKS

from reproduce_entries.entry import Cell, Check, Entry, Records, Result
from reproduce_entries.page import COLOURS, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

K, BETA, DECAY = 32, 0.995, 0.1
WAYS = {  # the transform, and κ
    "DCT, κ = 1": ("dct", 1.0),
    "DCT, κ = 0.2": ("dct", 0.2),
    "DCT, κ = 0": ("dct", 0.0),
    "random, κ = 1": ("random", 1.0),
    "none, κ = 1": ("none", 1.0),
}


@functools.cache
def orthogonal(size: int) -> torch.Tensor:
    """Return a random orthogonal matrix, always the same one."""
    drawn = torch.randn(size, size, generator=torch.Generator().manual_seed(size))
    found: torch.Tensor = torch.linalg.qr(drawn).Q
    return found


def transformed(tiles: torch.Tensor, kind: str) -> torch.Tensor:
    from gtopk.training import outer_tiles

    if kind == "random":
        left, right = (orthogonal(size) for size in tiles.shape[1:])
        return left @ tiles @ right.T
    return outer_tiles.transformed(tiles) if kind == "dct" else tiles


def restored(tiles: torch.Tensor, kind: str) -> torch.Tensor:
    from gtopk.training import outer_tiles

    if kind == "random":
        left, right = (orthogonal(size) for size in tiles.shape[1:])
        return left.T @ tiles @ right
    return outer_tiles.restored(tiles) if kind == "dct" else tiles


def largest(tiles: torch.Tensor, k: int) -> torch.Tensor:
    """Return the k largest of each tile, with zeros elsewhere."""
    rows = tiles.flatten(1)
    at = rows.abs().topk(min(k, rows.shape[1])).indices
    return torch.zeros_like(rows).scatter(1, at, rows.gather(1, at)).view_as(tiles)


def cells(quick: bool) -> list[Cell]:
    shared = {"kind": "simulated", "task": "gpt-0.1m", "replicas": 2}
    return [
        {"part": name, **shared, "steps": 20 if quick else 300, "lr": lr, "seed": seed}
        for name in WAYS
        for lr in ((4e-3,) if quick else (2e-3, 4e-3, 8e-3))
        for seed in range(1 if quick else 2)
    ]


def run(cell: Cell) -> Result:
    """Trains by M ← βM + (1 − β)G; sends the largest of T(M); M ← M − κ T⁻¹(sent)."""
    from gtopk.training.outer_tiles import from_tiles, in_tiles, tile_of

    torch.set_num_threads(1)
    kind, kappa = WAYS[cell["part"]]
    ranks = cell["replicas"]
    tasks = [TASKS[cell["task"]](rank, ranks, "alike", cell["seed"]) for rank in range(ranks)]
    task, parameters = tasks[0], list(tasks[0].model.parameters())
    tiles = [tile_of(p.shape) for p in parameters]
    zeros = [in_tiles(torch.zeros_like(p), t) for p, t in zip(parameters, tiles, strict=True)]
    momenta = [[each.clone() for each in zeros] for _ in tasks]
    for step in range(cell["steps"]):
        sums = [torch.zeros_like(each) for each in zeros]
        for own, momentum in zip(tasks, momenta, strict=True):
            inputs, targets = own.batch()
            task.model.zero_grad()
            task.loss(task.model(inputs), targets).backward()
            for i, (p, tile) in enumerate(zip(parameters, tiles, strict=True)):
                assert p.grad is not None
                momentum[i].mul_(BETA).add_(in_tiles(p.grad, tile), alpha=1 - BETA)
                sent = largest(transformed(momentum[i], kind), K)
                sums[i] += sent
                momentum[i].sub_(restored(sent, kind), alpha=kappa)
        lr = cell["lr"] * task.recipe.factor(step, cell["steps"])
        with torch.no_grad():
            for p, tile, total in zip(parameters, tiles, sums, strict=True):
                p.mul_(1 - lr * DECAY if p.dim() >= 2 else 1)
                p.sub_(from_tiles(restored(total, kind), tile, p.shape).sign(), alpha=lr)
    return {"loss": task.score(task.model)}


def best(records: Records) -> dict[str, tuple[float, float, list[float]]]:
    """Return for each way the mean loss at its best learning rate, that rate, and the losses."""
    found = {}
    for name in WAYS:
        by_rate: dict[float, list[float]] = {}
        for each in records:
            if each.cell["part"] == name:
                by_rate.setdefault(each.cell["lr"], []).append(each.result["loss"])
        rate = min(by_rate, key=lambda lr: statistics.mean(by_rate[lr]))
        found[name] = (statistics.mean(by_rate[rate]), rate, by_rate[rate])
    return found


def checks(records: Records) -> list[Check]:
    loss = {name: each[0] for name, each in best(records).items()}
    dct, other, none = (loss[f"{name}, κ = 1"] for name in ("DCT", "random", "none"))
    some, without = loss["DCT, κ = 0.2"], loss["DCT, κ = 0"]
    return [
        Check(
            none > max(dct, other),
            f"without a transform the loss is {none:.3f}, with DCT {dct:.3f} and with a random "
            f"orthogonal one {other:.3f}.",
        ),
        Check(
            abs(other / dct - 1) <= 0.01,
            f"random is {100 * (other / dct - 1):+.1f} % from DCT.",
        ),
        Check(
            without > max(dct, some),
            f"with κ = 0 the loss is {without:.3f}, with 0.2 {some:.3f} and with 1 {dct:.3f}.",
        ),
    ]


def fields(records: Records) -> dict[str, str]:
    rows = []
    for name, (mean, rate, losses) in best(records).items():
        tried = [each.cell["lr"] for each in records if each.cell["part"] == name]
        edge = " (edge)" if rate in (min(tried), max(tried)) else ""
        each = ", ".join(f"{loss:.3f}" for loss in losses)
        rows.append((name, f"{rate:g}{edge}", f"{mean:.3f}", each))
    return {
        "adamw": "[adamw](adamw.md)",
        "losses": table(("transform", "best rate", "loss", "seeds"), rows),
    }


def draw(records: Records, figure: Figure) -> None:
    axes = figure.subplots()
    for i, name in enumerate(WAYS):
        some = [each for each in records if each.cell["part"] == name]
        rates = [each.cell["lr"] for each in some]
        axes.plot(rates, [each.result["loss"] for each in some], "o", color=COLOURS[i], label=name)
    axes.set_xscale("log")
    axes.set_xticks(sorted(rates), [f"{rate:g}" for rate in sorted(rates)], minor=False)
    axes.minorticks_off()
    axes.set_xlabel("learning rate (each point is a seed)")
    axes.set_ylabel("loss, nats a character")
    axes.legend(fontsize=7)


DEMO_ABLATION = Entry("demo-ablation", cells, run, checks, fields, draw)
