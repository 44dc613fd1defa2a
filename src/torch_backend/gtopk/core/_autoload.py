"""The entry point that torch calls: registers the backend "gtopk" and ``pmix://``.

torch calls the torch.backends entry point at the end of ``import torch``, and the
torch.distributed.backends one (torch 2.14 and up) when a backend is requested by name.

Native code is loaded only when the first process group is made. A broken installation must not
break ``import torch``, so nothing here raises.
"""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch._C._distributed_c10d import Backend, Store, _DistributedBackendOptions

_NAME = "gtopk"


def register() -> None:
    """Register the backend with torch.distributed. Idempotent; warns if it cannot."""
    try:
        import torch.distributed as dist

        if not dist.is_available() or _NAME.upper() in dist.Backend._plugins:
            return
        # This is a list because torch would iterate over a str letter by letter.
        dist.Backend.register_backend(_NAME, _create, extended_api=True, devices=["cpu", "cuda"])
        dist.register_rendezvous_handler("pmix", _meet_by_pmix)
    except Exception as error:
        # If warnings are turned into errors, stay silent so that the user's import does not fail.
        with contextlib.suppress(Warning):
            warnings.warn(
                f"the torch.distributed backend gtopk is not available: {error!r}", stacklevel=2
            )


def _meet_by_pmix(url: str, **options: Any) -> Iterator[tuple[Store, int, int]]:
    """Handle ``init_process_group(init_method="pmix://")``; see gtopk.launch_env."""
    from gtopk.core import launch

    yield from launch.meet_by_pmix(url, **options)


def _create(options: _DistributedBackendOptions, backend_options: object | None) -> Backend:
    """Meet the other ranks of a group; called by init_process_group and new_group.

    Raises ImportError if the native library cannot be loaded, NotImplementedError for pg_options,
    ValueError if the ranks are not distinct, and torch.distributed.DistBackendError if the ranks do
    not find each other.
    """
    if backend_options is not None:
        raise NotImplementedError(
            f"gtopk: pg_options are not implemented, given {type(backend_options).__name__}"
        )
    ranks = list(options.global_ranks_in_group)
    if len(set(ranks)) != len(ranks):  # some torch versions do not check this
        raise ValueError(f"gtopk: a group needs distinct ranks, given {ranks}")
    from gtopk.core import _native

    backend, _ = _native.create_backend(
        options.store,
        options.group_rank,
        options.group_size,
        options.timeout,
        options.group_id,
        reconfigurable=getattr(options, "enable_reconfigure", False),  # since torch 2.14
    )
    return backend
