"""The compared ways to exchange gradients, by name.

Each is a row: how it changes a DDP. Uses gtopk and torch's own hooks as a user would.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import gtopk

# Takes a DDP, the density and the number of dense steps at the start.
Method = Callable[[DistributedDataParallel, float, int], gtopk.SparseState | None]


def _dense(ddp: DistributedDataParallel, density: float, dense_steps: int) -> None:
    """DDP's own all-reduce."""


def _bf16(ddp: DistributedDataParallel, density: float, dense_steps: int) -> None:
    ddp.register_comm_hook(None, default_hooks.bf16_compress_hook)


def _power_sgd(ddp: DistributedDataParallel, density: float, dense_steps: int) -> None:
    state = powerSGD_hook.PowerSGDState(
        None,
        matrix_approximation_rank=1,
        start_powerSGD_iter=max(2, dense_steps),
        min_compression_rate=1,
    )
    ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def _sparse(**arguments: Any) -> Method:
    def attach(ddp: DistributedDataParallel, density: float, steps: int) -> gtopk.SparseState:
        return gtopk.attach(ddp, density, warmup=[("dense", steps)], min_numel=256, **arguments)

    return attach


def _coded(wire: str) -> Method:
    """All gradients in few bits, the rounding errors kept."""

    def attach(ddp: DistributedDataParallel, density: float, steps: int) -> gtopk.SparseState:
        return gtopk.attach(ddp, algorithm="dense", wire=wire, min_numel=256)

    return attach


def _adaptive(ddp: DistributedDataParallel, density: float, steps: int) -> gtopk.SparseState:
    """LAGS-SGD between a quarter of the density and four times it."""
    return gtopk.attach(
        ddp,
        "adaptive",
        density_bounds=(density / 4, min(1.0, 4 * density)),
        unit="parameter",
        warmup=[("dense", steps)],
        min_numel=256,
    )


# Without a density: what they send does not depend on one.
PLAIN: dict[str, Method] = {
    "dense": _dense,
    "bf16": _bf16,
    "powersgd": _power_sgd,
    **{wire: _coded(wire) for wire in ("int8", "4bit", "2bit", "ternary", "sign")},
}
SPARSE: dict[str, Method] = {
    "gtopk": _sparse(),
    "gtopk-merged": _sparse(put_back="merged"),
    "rs-ag": _sparse(algorithm="rs-ag"),
    "topk": _sparse(algorithm="topk"),
    "sketch": _sparse(algorithm="sketch"),
    "layer-wise": _sparse(unit="parameter"),
    "adaptive": _adaptive,
    "momentum": _sparse(momentum=0.9),
    "wire-bf16": _sparse(wire="bf16"),
    "wire-int8": _sparse(wire="int8"),
    "topk-2bit": _sparse(algorithm="topk", wire="2bit"),
    "topk-sign": _sparse(algorithm="topk", wire="sign"),
}
# Have the momentum themselves, in the optimizer's place (DGC).
OWN_MOMENTUM = {"momentum"}
METHODS = {**PLAIN, **SPARSE}
