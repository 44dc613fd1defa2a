"""Warns when a phase of a SparseState's warm-up would cost more than sending everything."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Iterator, Sequence

import torch.distributed as dist

from gtopk.core.groups import backend_of
from gtopk.ops.options import codes_dense
from gtopk.state.auto import plan_of
from gtopk.state.config import Config
from gtopk.state.units import Unit

MARGIN = 1.1  # predictions are not precise enough for smaller differences


def warn_of_dear_phases(
    config: Config, units: Sequence[Unit], step: int, group: dist.ProcessGroup | None
) -> None:
    """Warn, on the group's first rank, of each later density costing over a tenth more than dense.

    The prediction is for the largest unit; `auto` picks dense there. Collective if the warm-up has
    densities left at `step`; then all ranks must call it with the same arguments.
    """
    if config.automatic:
        return
    densities = dict.fromkeys(_densities_left(config, step))
    unit = max(units, key=lambda each: each.selected_numel)
    if not densities or not unit.selected_numel or dist.get_world_size(group) == 1:
        return
    # If the wire codes its values, the prediction for dense assumes coded values.
    wire = f', "{config.wire}"' if codes_dense(config.wire) else ""
    phase = f'("dense", steps{wire})'
    texts = []
    for density in densities:
        predictions = plan_of(config, unit.selected_numel, unit.dtype, density, group)[
            "predictions"
        ]
        if config.algorithm not in predictions:  # control algorithms have no prediction
            break
        sparse, dense = (predictions[each]["seconds"] for each in (config.algorithm, "dense"))
        if sparse > MARGIN * dense and backend_of(group).rank() == 0:
            texts.append(
                f"gtopk: density={density} in the warm-up is predicted to cost more than dense: "
                f"{1e3 * sparse:.3g} ms instead of {1e3 * dense:.3g} ms for {unit.selected_numel} "
                f"elements: use {phase} for that phase, or a lower density"
            )
    for text in texts:
        # If warnings are errors, stay silent: an error on one rank would leave the others waiting.
        with contextlib.suppress(Warning):
            warnings.warn(text, stacklevel=2)


def _densities_left(config: Config, step: int) -> Iterator[float]:
    ends = itertools.accumulate(phase[1] for phase in config.warmup)
    for (density, steps, *_), end in zip(config.warmup, ends, strict=True):
        if density != "dense" and steps and end > step:
            yield density
