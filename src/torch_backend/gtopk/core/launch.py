"""Start-up under mpirun, prterun or srun: finds this rank and torch's store from the launcher.

Rank 0 serves a TCPStore for as long as its process lives. With PMIx the system chooses the port,
and the other ranks get the address from PMIx. In a Slurm step without PMIx, address and port follow
from the step's variables.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from gtopk.core import _native

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.distributed import Store, TCPStore

_TIMEOUT = timedelta(minutes=5)
_served: TCPStore | None = None  # rank 0's store, which lives as long as the process


class _Place(NamedTuple):
    rank: int
    world_size: int
    local_rank: int | None
    local_world_size: int | None


def launch_env(timeout: timedelta = _TIMEOUT) -> dict[str, str]:
    """Set the environment variables that torchrun would set, from the launcher; return them.

    Call it on every rank, before ``init_process_group("gtopk")``. It sets RANK, WORLD_SIZE,
    MASTER_ADDR and MASTER_PORT, and LOCAL_RANK and LOCAL_WORLD_SIZE if the launcher provides them.
    It is a no-op if RANK is already set (torchrun, a second call).

    Under mpirun, prterun and srun --mpi=pmix it asks PMIx: it then blocks until rank 0 has called
    it, for at most `timeout`. Without PMIx it reads the variables of srun's step (SLURM_PROCID and
    others). MASTER_ADDR is then the first host of the step, and MASTER_PORT follows from the job's
    and the step's numbers, unless they are already set. Batch scripts and salloc shells are not
    steps: put srun before the command.

    Raises torch.distributed.DistBackendError if no launcher has numbered this process, or if rank 0
    is not found in time.
    """
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    if not os.environ.get("RANK"):
        place, host, port = _find(timeout)
        found = zip(names, (*place, host, port), strict=True)
        os.environ.update({name: str(value) for name, value in found if value is not None})
    return {name: os.environ[name] for name in names if name in os.environ}


def meet_by_pmix(
    url: str, timeout: timedelta = _TIMEOUT, **options: Any
) -> Iterator[tuple[Store, int, int]]:
    """Handle torch's rendezvous ``pmix://``: return the store, this rank, the number of ranks.

    In a Slurm step without PMIx it uses the step's variables, as launch_env() does.

    Raises ValueError if rank or world_size were passed to init_process_group and differ from the
    launcher's, and torch.distributed.DistBackendError as launch_env() does.
    """
    from torch.distributed import TCPStore

    place, host, port = _find(timeout)
    for name, given in parse_qs(urlsplit(url).query).items():
        if given != [str(getattr(place, name, None))]:
            raise ValueError(
                f"gtopk: pmix:// was given {name}={given[0]}, but the launcher says "
                f"{getattr(place, name, 'nothing about it')}: leave {name} out"
            )
    store = TCPStore(
        host,
        port,
        place.world_size,
        is_master=place.rank == 0,
        timeout=timeout,
        multi_tenant=True,
    )
    yield store, place.rank, place.world_size
    raise RuntimeError("gtopk: a group cannot meet again through the same pmix:// rendezvous")


def _find(timeout: timedelta) -> tuple[_Place, str, int]:
    """Return this rank's place, and the address of rank 0's store as seen from here."""
    operators = _native.load()
    *numbers, host, port = operators.launcher_place()
    place = _Place(*numbers)
    if host:
        if place.rank == 0:
            _serve(place.world_size, port)
        return place, host, port
    port = _serve(place.world_size) if place.rank == 0 else 0
    milliseconds = round(timeout.total_seconds() * 1000)
    host, port = operators.find_torch_store(port, milliseconds)
    return place, host, port


def _serve(world_size: int, port: int = 0) -> int:
    """Serve a store at one port (0: any); torch's stores at that port in this process share it."""
    global _served
    from torch.distributed import DistNetworkError, TCPStore

    if _served is None:
        try:
            _served = TCPStore(
                "localhost",
                port,
                world_size,
                is_master=True,
                wait_for_workers=False,
                multi_tenant=True,
            )
        except DistNetworkError as error:
            raise DistNetworkError(
                f"gtopk: rank 0 cannot serve its store at port {port}, which is MASTER_PORT or "
                f"follows from Slurm's job and step: set MASTER_PORT to a free port ({error})"
            ) from error
    return int(_served.port)
