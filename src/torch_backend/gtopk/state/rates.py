"""Factors on gradients: learning rates (accumulate="update") and the loss scale.

They are read from the optimizer and the GradScaler. This module uses no exchange.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import torch

from gtopk.state.units import Unit


def rates_of(
    accumulate: str,
    optimizer: torch.optim.Optimizer | None,
    parameters: Mapping[str, torch.Tensor],
) -> Rates | None:
    """Return the rates that `accumulate` needs.

    Raise ValueError if an argument is missing or superfluous.
    """
    if (accumulate == "update") != (optimizer is not None):
        raise ValueError(
            "gtopk: accumulate='update' needs optimizer=, which has the learning rates"
            if optimizer is None
            else "gtopk: optimizer= is only for accumulate='update', given accumulate='gradient'"
        )
    return None if optimizer is None else Rates(optimizer, parameters)


class Rates:
    """The factor on each parameter's gradient before it is accumulated."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.Tensor]
    ) -> None:
        """Find the parameters in the optimizer; raise ValueError if it lacks one."""
        if not isinstance(getattr(optimizer, "param_groups", None), list):
            raise ValueError(
                "gtopk: accumulate='update' reads learning rates from optimizer=, which must be a "
                f"torch.optim.Optimizer, given {type(optimizer).__name__}"
            )
        self._optimizer = optimizer
        # Remember groups by number because an optimizer's load_state_dict() replaces them.
        home = {
            id(each): i
            for i, group in enumerate(optimizer.param_groups)
            for each in group["params"]
        }
        missing = [name for name, each in parameters.items() if id(each) not in home]
        if missing:
            raise ValueError(
                f"gtopk: accumulate='update' reads learning rates from the optimizer, which does "
                f"not have '{missing[0]}' ({len(missing)} parameters in all)"
            )
        self._group = {name: home[id(each)] for name, each in parameters.items()}

    def of(self, names: Iterable[str]) -> dict[str, float]:
        """Return the current rates; raise ValueError for a rate that would change nothing."""
        rates = {}
        for name in names:
            number = self._group[name]
            rate = float(self._optimizer.param_groups[number]["lr"])
            if not (rate > 0 and math.isfinite(rate)):
                raise ValueError(
                    f"gtopk: accumulate='update' with lr={rate} in group {number} of the "
                    f"optimizer ('{name}'): rates must be above 0, as a step with rate 0 loses "
                    "what is delivered: start the schedule above 0"
                )
            rates[name] = rate
        return rates


class Scaler(Protocol):
    """The part of torch.amp.GradScaler that this module needs."""

    def get_scale(self) -> float:
        """Return the factor on the loss; 1 if scaling is disabled."""


def check_scaler(scaler: object, units: Sequence[Unit]) -> None:
    """Raise ValueError unless it is a scaler for these units, or None."""
    if scaler is None:
        return
    if not callable(getattr(scaler, "get_scale", None)):
        raise ValueError(
            "gtopk: scaler must be a torch.amp.GradScaler, or have a get_scale() like it, given "
            f"{type(scaler).__name__}"
        )
    if any(unit.dtype == torch.float16 for unit in units):
        raise ValueError(
            "gtopk: scaler= was given with float16 parameters, whose gradients GradScaler does not "
            "unscale: keep the parameters in float32 and compute under torch.autocast, and under "
            "FSDP2 with MixedPrecisionPolicy(reduce_dtype=torch.float32)"
        )


def scale_of(scaler: Scaler) -> float:
    """Return the scale of the current backward. Raise ValueError if it is not a valid scale."""
    scale = float(scaler.get_scale())
    if not (scale > 0 and math.isfinite(scale)):
        raise ValueError(
            f"gtopk: a loss scale must be finite and above 0, but the scaler's is {scale}"
        )
    return scale
