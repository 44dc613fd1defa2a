"""Finds the DDP inside a framework's object. Classes are compared by name; none is imported."""

from __future__ import annotations

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gtopk.core.tracing import uncompiled

_LIGHTNING = (
    "Lightning's is trainer.strategy.model from on_train_start on: call gtopk.attach in that "
    "method of a Callback"
)
_FABRIC = "it is the _forward_module of the module that fabric.setup(model) returns"
_TRAINER = (
    "the Trainer's is trainer.model_wrapped once train() has begun: call gtopk.attach in "
    "on_train_begin of a TrainerCallback"
)
# Keys consist of the top-level package and the class.
_PLACES = {
    "transformers.Trainer": _TRAINER,
    # TrainerCallback gets this as `model`.
    "transformers.PreTrainedModel": (
        f"{_TRAINER}; without a Trainer, call gtopk.attach(DistributedDataParallel(model), "
        "density=…)"
    ),
    "lightning.Trainer": _LIGHTNING,
    "lightning.LightningModule": _LIGHTNING,
    "pytorch_lightning.Trainer": _LIGHTNING,
    "pytorch_lightning.LightningModule": _LIGHTNING,
    "lightning.Fabric": _FABRIC,
    "lightning_fabric.Fabric": _FABRIC,
    "accelerate.Accelerator": "accelerator.prepare(model) returns it",
    "deepspeed.DeepSpeedEngine": (
        "DeepSpeed has none: it reduces gradients itself, densely, and calls no hook. With ZeRO "
        "stage 0, pass deepspeed.initialize a gtopk.DistributedOptimizer and call engine.backward "
        "under engine.no_sync(); or train the model under DistributedDataParallel"
    ),
    "torch.FSDPModule": "FSDP2 has none: call gtopk.fsdp_hook(model, replicate_group, density=…)",
    "torch.FullyShardedDataParallel": (
        "FSDP1 has none: use FSDP2 (fully_shard) with gtopk.fsdp_hook, or DistributedDataParallel"
    ),
}


def ddp_of(given: object) -> DistributedDataParallel:
    """Return the DDP without torch.compile's wrapper, or raise ValueError saying where it is."""
    ddp = uncompiled(given)
    if isinstance(ddp, DistributedDataParallel):
        return ddp
    raise ValueError(
        "gtopk: attach takes the DistributedDataParallel around the model, given "
        f"{type(given).__name__}: {_where(ddp)}"
    )


def _where(given: object) -> str:
    """Say where to find the DDP of the given object."""
    name = _within(given)
    if name:
        return f"it is in its {name}"
    for each in type(given).__mro__:
        place = _PLACES.get(f"{each.__module__.partition('.')[0]}.{each.__name__}")
        if place:
            return place
    if isinstance(given, nn.Module):
        return (
            "call gtopk.attach(DistributedDataParallel(model), density=…), or use "
            "gtopk.DistributedOptimizer without DDP"
        )
    return "pass the module that is called in the forward"


def _within(given: object) -> str:
    """Return the name of the attribute, or submodule, that is a DDP."""
    inside: dict[str, object] = dict(getattr(given, "__dict__", {}))
    if isinstance(given, nn.Module):
        inside |= dict(given.named_modules())
    for name, each in inside.items():
        if isinstance(uncompiled(each), DistributedDataParallel):
            return name
    return ""
