"""Loss scaling: what a SparseState needs of a GradScaler."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gtopk.state.units import Unit


class Scaler(Protocol):
    """The part of torch.amp.GradScaler that is needed here."""

    def get_scale(self) -> float:
        """Return the loss's factor; 1 if scaling is disabled."""


def check_scaler(scaler: object, units: Sequence[Unit]) -> None:
    """Raise ValueError unless it is a scaler for these units, or None."""
    if scaler is None:
        return
    if not callable(getattr(scaler, "get_scale", None)):
        raise ValueError(
            "gtopk: scaler must be a torch.amp.GradScaler, or have its get_scale(), given "
            f"{type(scaler).__name__}"
        )
    if any(unit.dtype == torch.float16 for unit in units):
        raise ValueError(
            "gtopk: scaler= with float16 parameters, whose gradients GradScaler does not unscale: "
            "keep the parameters in float32 and compute under torch.autocast, and under FSDP2 with "
            "MixedPrecisionPolicy(reduce_dtype=torch.float32)"
        )


def scale_of(scaler: Scaler) -> float:
    """Return the scale of the current backward. Raises ValueError if it is not a valid scale."""
    scale = float(scaler.get_scale())
    if not (scale > 0 and math.isfinite(scale)):
        raise ValueError(f"gtopk: a loss scale must be finite and above 0, the scaler's is {scale}")
    return scale
