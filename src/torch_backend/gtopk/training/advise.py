"""gtopk.advise: what each way to exchange a model's gradients would cost in this job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

import torch
import torch.distributed as dist
from torch import nn

from gtopk.core.groups import ranks_of
from gtopk.core.tracing import uncompiled
from gtopk.ops.options import SparseOptions, sends_all
from gtopk.ops.plan import plan_with
from gtopk.state.fingerprint import check_alike
from gtopk.training.parameters import as_real, trained_parameters


class Row(TypedDict):
    """One way to exchange all gradients."""

    arguments: dict[str, Any]
    """Arguments of gtopk.attach; none for a DDP that stays dense."""
    seconds: float
    """Predicted for the exchange of a step, with all gradients as one tensor of each type."""
    bytes: float
    """Bytes of messages on the critical path, including headers."""
    step_seconds: float | None
    """Upper bound for a step, whose exchange overlaps with nothing; None if unknown."""
    loss: str
    """Loss against dense, as measured on a small net of this kind; "not measured"."""


@dataclass(frozen=True)
class Advice:
    """The result of advise(), the same on all ranks. str() is a table."""

    kind: str
    """One of "transformer", "convolutional" and "other"."""
    parameters: int
    """Elements of the gradients."""
    ranks: int
    """Ranks of the group."""
    rows: list[Row]
    """One row for each way to exchange the gradients."""

    def __str__(self) -> str:
        """Return the table."""
        lines = [
            f"{self.parameters:,} parameters ({_KINDS[self.kind]}), ranks: {self.ranks}",
            f"{'arguments of gtopk.attach':<49} {'exchange':>11} {'step':>11} {'bytes':>15}  "
            "loss against dense",
        ]
        for each in self.rows:
            called = ", ".join(f"{name}={value!r}" for name, value in each["arguments"].items())
            size = f"{each['bytes']:,.0f}"
            lines.append(
                f"{called or 'none (dense)':<49} {_in_ms(each['seconds']):>11} "
                f"{_in_ms(each['step_seconds']):>11} {size:>15}  {each['loss']}"
            )
        lines.append("Predicted from this job's links. Where the losses come from: docs/tuning.md")
        return "\n".join(lines)


_KINDS = {
    "transformer": "a transformer, it seems",
    "convolutional": "a convolutional net, it seems",
    "other": "neither convolutional nor a transformer, it seems",
}
# Arguments, and what they cost on each kind of net; docs/tuning.md has the same figures.
_WAYS: tuple[tuple[dict[str, Any], Mapping[str, str]], ...] = (
    ({}, {"transformer": "", "convolutional": "", "other": ""}),
    (
        {"algorithm": "dense", "wire": "int8"},
        {
            "transformer": "0.2 ± 0.3 % worse (AdamW)",
            "convolutional": "0.1 ± 0.2 points better",
            "other": "0.5 ± 1.3 points worse",
        },
    ),
    (
        {"algorithm": "dense", "wire": "4bit"},
        {
            "transformer": "0.3 ± 0.7 % worse (AdamW)",
            "convolutional": "0.1 ± 0.2 points better",
            "other": "0.5 ± 1.2 points worse",
        },
    ),
    (
        {"algorithm": "dense", "wire": "ternary", "error_decay": 0.0},
        {
            "transformer": "1.2 ± 0.5 % worse (AdamW)",
            "convolutional": "0.2 ± 0.5 points worse",
            "other": "0.3 ± 0.6 points worse",
        },
    ),
    ({"algorithm": "topk", "density": 0.05}, {"transformer": "12 ± 4 % worse (AdamW)"}),
    (
        {"algorithm": "gtopk", "density": 0.01},
        {
            "transformer": "21 % worse (AdamW), 17 % worse (SGD)",
            "convolutional": "0.2 ± 1.0 points better",
            "other": "0.2 ± 1.4 points better",
        },
    ),
)
_NOT_MEASURED = "not measured"


def advise(
    model: nn.Module,
    *,
    step_seconds: float | None = None,
    group: dist.ProcessGroup | None = None,
) -> Advice:
    """Predict how long a step would take with each way to exchange the gradients.

    Call it once before training: ``print(gtopk.advise(ddp, step_seconds=…))``.

    Collective: every rank calls it, with a model of the same parameters. Like gtopk.plan, it
    measures the job's links if they have not been measured yet. Predictions are for all gradients
    at once: DDP sends them in buckets, some of them during the backward.

    Args:
        model: a DDP, or the module that it will wrap.
        step_seconds: how long a step takes without any exchange (under ``ddp.no_sync()``) on the
            slowest rank. None omits the step times.
        group: a process group of backend gtopk; None means the model's group if it is a DDP, or
            else the default group.

    Returns:
        The advice; print it, or use its rows. The losses were measured on small nets of this kind
        (docs/tuning.md); yours may differ.

    Raises:
        ValueError: an invalid argument, parameters that cannot be exchanged, or ranks with
            different parameters.
        torch.distributed.DistBackendError: a rank died, or the group's timeout passed.
    """
    if step_seconds is not None and not step_seconds >= 0:
        raise ValueError(f"gtopk: step_seconds must be 0 or more, given {step_seconds!r}")
    module = uncompiled(model)
    if isinstance(module, nn.parallel.DistributedDataParallel):
        group = module.process_group if group is None else group
        module = uncompiled(module.module)
    if not isinstance(module, nn.Module):
        raise ValueError(f"gtopk: model must be a torch.nn.Module, given {type(model).__name__}")
    sizes: dict[torch.dtype, int] = {}
    for each in trained_parameters(module).values():
        real = as_real(each)
        sizes[real.dtype] = sizes.get(real.dtype, 0) + real.numel()
    # Sort because dictionaries keep the order of parameters, which may differ between ranks.
    sizes = dict(sorted(sizes.items(), key=str))
    said = [(f"elements of {dtype} are", str(size)) for dtype, size in sizes.items()]
    check_alike(said, group, _ALIKE)
    kind = kind_of(module)
    rows = []
    for arguments, losses in _WAYS:
        costs = [_cost(arguments, size, dtype, group) for dtype, size in sizes.items()]
        seconds = sum(each[0] for each in costs)
        rows.append(
            Row(
                arguments=arguments,
                seconds=seconds,
                bytes=sum(each[1] for each in costs),
                step_seconds=None if step_seconds is None else step_seconds + seconds,
                loss=losses.get(kind, _NOT_MEASURED),
            )
        )
    return Advice(kind, sum(sizes.values()), len(ranks_of(group)), rows)


_ALIKE = (
    "the ranks' models are not alike",
    "Make models in the same way on every rank",
)


def kind_of(module: nn.Module) -> str:
    """Guess the kind of a module from its submodules."""
    inside = list(module.modules())
    if any(isinstance(each, nn.modules.conv._ConvNd) for each in inside):
        return "convolutional"
    attends = (nn.MultiheadAttention, nn.Embedding)
    return "transformer" if any(isinstance(each, attends) for each in inside) else "other"


def _cost(
    arguments: Mapping[str, Any], size: int, dtype: torch.dtype, group: dist.ProcessGroup | None
) -> tuple[float, float]:
    """Return predicted seconds and bytes for a tensor of this many elements."""
    algorithm = arguments.get("algorithm", "dense")
    options = SparseOptions(
        None,
        arguments.get("density", 1.0),
        "auto",
        "exact",
        4096,
        wire=arguments.get("wire"),
        semantics="dense" if sends_all(algorithm) else "any",
    )
    plan = plan_with(options, size, dtype, group)
    assert plan is not None
    predicted = plan["predictions"][algorithm]
    return predicted["seconds"], predicted["bytes"]


def _in_ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e3 * seconds:,.1f} ms"
