"""Sparse and dense gradient all-reduce over UCX for torch.distributed.

``torch.distributed.init_process_group("gtopk")`` does not require an import of this package. Import
it to:

- Train with DDP: attach (or SparseState and sparse_hook). Without DDP: DistributedOptimizer. With
  FSDP2: fsdp_hook. Over slow links, with one exchange every H steps: OuterOptimizer.
- Write checkpoints that any number of ranks can read: save, load.
- Measure and choose: advise, plan, stats, diagnose, flight_recorder.
- Call the collective itself: sparse_all_reduce.
- Make groups: launch_env (under mpirun, prterun or srun), ReplicaGroup (whose ranks may change),
  create_backend
  and Backend (without torch's registry).

All names are loaded on first use. ``import torch`` runs this file (through the entry point in
``_autoload.py``), so nothing here may fail or take long.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from gtopk.core._autoload import register

if TYPE_CHECKING:
    from gtopk.core.launch import launch_env
    from gtopk.core.replicas import ReplicaGroup
    from gtopk.core.standalone import Backend, create_backend
    from gtopk.diagnostics.diagnose import diagnose
    from gtopk.diagnostics.statistics import flight_recorder, stats
    from gtopk.ops.plan import plan
    from gtopk.ops.sparse_all_reduce import sparse_all_reduce
    from gtopk.training.advise import advise
    from gtopk.training.checkpoint import load, save
    from gtopk.training.ddp import attach, sparse_hook
    from gtopk.training.fsdp import fsdp_hook
    from gtopk.training.optimizer import DistributedOptimizer
    from gtopk.training.outer import OuterOptimizer
    from gtopk.training.sparse_state import SparseState

    __version__: str
    """The version of the installed package."""

__all__ = [
    "Backend",
    "DistributedOptimizer",
    "OuterOptimizer",
    "ReplicaGroup",
    "SparseState",
    "__version__",
    "advise",
    "attach",
    "create_backend",
    "diagnose",
    "flight_recorder",
    "fsdp_hook",
    "launch_env",
    "load",
    "plan",
    "save",
    "sparse_all_reduce",
    "sparse_hook",
    "stats",
]

_PLACES = {
    "Backend": "gtopk.core.standalone",
    "DistributedOptimizer": "gtopk.training.optimizer",
    "OuterOptimizer": "gtopk.training.outer",
    "ReplicaGroup": "gtopk.core.replicas",
    "SparseState": "gtopk.training.sparse_state",
    "advise": "gtopk.training.advise",
    "attach": "gtopk.training.ddp",
    "create_backend": "gtopk.core.standalone",
    "diagnose": "gtopk.diagnostics.diagnose",
    "flight_recorder": "gtopk.diagnostics.statistics",
    "fsdp_hook": "gtopk.training.fsdp",
    "launch_env": "gtopk.core.launch",
    "load": "gtopk.training.checkpoint",
    "plan": "gtopk.ops.plan",
    "save": "gtopk.training.checkpoint",
    "sparse_all_reduce": "gtopk.ops.sparse_all_reduce",
    "sparse_hook": "gtopk.training.ddp",
    "stats": "gtopk.diagnostics.statistics",
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        value: object = importlib.import_module("importlib.metadata").version("gtopk")
    elif name in _PLACES:
        value = getattr(importlib.import_module(_PLACES[name]), name)
    else:
        raise AttributeError(f"module 'gtopk' has no attribute '{name}'")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


# With TORCH_DEVICE_BACKEND_AUTOLOAD=0 torch loads no backends, so `import gtopk` registers ours.
register()
