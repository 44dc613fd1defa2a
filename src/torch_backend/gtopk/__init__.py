"""Sparse and dense gradient all-reduce over UCX for torch.distributed.

``torch.distributed.init_process_group("gtopk")`` needs no import of this package; these do:

- Train with DDP: attach (or SparseState and sparse_hook). Without DDP: DistributedOptimizer. With
  FSDP2: fsdp_hook.
- Checkpoints on any number of ranks: save, load.
- Measure and choose: plan, stats, diagnose, flight_recorder.
- The collective itself: sparse_all_reduce.
- Groups: launch_env (mpirun, prterun, srun), ReplicaGroup (ranks that change), create_backend and
  Backend (without torch's registry).

They are loaded on first use: ``import torch`` runs this file (through the entry point in
``_autoload.py``), so nothing here may fail or take time.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from gtopk._autoload import register

if TYPE_CHECKING:
    from gtopk.alone import Backend, create_backend
    from gtopk.collectives import sparse_all_reduce
    from gtopk.diagnosis import diagnose
    from gtopk.hook import attach, sparse_hook
    from gtopk.launch import launch_env
    from gtopk.optimizer import DistributedOptimizer
    from gtopk.planning import plan
    from gtopk.recorder import flight_recorder
    from gtopk.replicas import ReplicaGroup
    from gtopk.saving import load, save
    from gtopk.shards import fsdp_hook
    from gtopk.state import SparseState
    from gtopk.statistics import stats

    __version__: str

__all__ = [
    "Backend",
    "DistributedOptimizer",
    "ReplicaGroup",
    "SparseState",
    "__version__",
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
    "Backend": "gtopk.alone",
    "DistributedOptimizer": "gtopk.optimizer",
    "ReplicaGroup": "gtopk.replicas",
    "SparseState": "gtopk.state",
    "attach": "gtopk.hook",
    "create_backend": "gtopk.alone",
    "diagnose": "gtopk.diagnosis",
    "flight_recorder": "gtopk.recorder",
    "fsdp_hook": "gtopk.shards",
    "launch_env": "gtopk.launch",
    "load": "gtopk.saving",
    "plan": "gtopk.planning",
    "save": "gtopk.saving",
    "sparse_all_reduce": "gtopk.collectives",
    "sparse_hook": "gtopk.hook",
    "stats": "gtopk.statistics",
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


# With TORCH_DEVICE_BACKEND_AUTOLOAD=0 torch looks for no backends: `import gtopk` does it then.
register()
