"""What DistributedDataParallel does without telling its hook.

A hook gets buckets, but not who calls it; and with find_unused_parameters DDP does not write the
.grad of a parameter that no rank used, whatever the hook returned for it.
"""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


_known: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()


def note_ddp(ddp: DistributedDataParallel) -> None:
    """Let ddps_around() find it even after a gc.freeze(), which hides it from the collector."""
    _known.add(ddp)


def ddps_around(state: object, parameter: torch.Tensor) -> list[DistributedDataParallel]:
    """Find the DDPs whose hook has `state`; if there are none, those that reduce `parameter`.

    Looks at every object of the process: takes tens of milliseconds, so call it once.
    """
    found = [each for each in gc.get_objects() if issubclass(type(each), DistributedDataParallel)]
    found += [each for each in _known if not any(each is other for other in found)]
    hooked = [each for each in found if any(of is state for _, of in each._comm_hooks)]
    return hooked or [
        each for each in found if any(of is parameter for of in each.module.parameters())
    ]


def check_group(ddps: Sequence[DistributedDataParallel], group: dist.ProcessGroup | None) -> None:
    """Raise ValueError if the DDPs reduce over ranks other than those of `group`."""
    ranks = dist.get_process_group_ranks(group)
    reduced = [dist.get_process_group_ranks(each.process_group) for each in ddps]
    if reduced and ranks not in reduced:
        raise ValueError(
            f"gtopk: DDP reduces over {_said(reduced[0])}, its SparseState over {_said(ranks)}: "
            "make the state with gtopk.attach(ddp, density=…), or hand the process group that DDP "
            "was given to it as group="
        )


def check_options(ddp: DistributedDataParallel) -> None:
    """Raise NotImplementedError for options under which DDP does not reduce by its hook alone."""
    if ddp.mixed_precision is not None:
        raise NotImplementedError(
            "gtopk: this DDP has mixed_precision=, whose own hook casts on an accelerator's "
            "streams, which is not implemented: make it without, and compute under torch.autocast"
        )
    if ddp._delay_all_reduce_params:
        raise NotImplementedError(
            "gtopk: this DDP has delay_all_reduce_named_params=, which it averages without any "
            "hook, and without waiting for the result, so that replicas may differ, with any "
            "backend: make it without"
        )


def may_drop(ddps: Sequence[DistributedDataParallel]) -> bool:
    """Whether DDP may drop results; an unknown DDP may."""
    return not ddps or any(each.find_unused_parameters or each.static_graph for each in ddps)


def with_sparse_gradients(module: nn.Module) -> set[int]:
    """Return the ids of parameters whose gradients DDP expects to be sparse COO.

    The first module that has a parameter decides.
    """
    sparse: dict[int, bool] = {}
    for each in module.modules():
        is_sparse = isinstance(each, (nn.Embedding, nn.EmbeddingBag)) and each.sparse
        for parameter in each.parameters(recurse=False):
            sparse.setdefault(id(parameter), is_sparse)
    return {each for each, is_sparse in sparse.items() if is_sparse}


def sparse_gradients(ddp: DistributedDataParallel) -> int:
    """Count the parameters whose gradients DDP reduces as sparse COO."""
    ids = with_sparse_gradients(ddp.module)
    named = ddp.module.named_parameters()
    left_out = set(ddp.parameters_to_ignore)
    return sum(id(p) in ids and p.requires_grad and name not in left_out for name, p in named)


def version(parameter: torch.Tensor) -> int | None:
    """Return how often .grad has been written so far; None if there is none."""
    return None if parameter.grad is None else parameter.grad._version


def has_dropped(parameter: torch.Tensor, before: int | None, bucket: torch.Tensor) -> bool:
    """Whether DDP did not write .grad in a finished backward.

    before: the version when the gradient arrived; bucket: its place in DDP's bucket. With
    gradient_as_bucket_view .grad may be a view of it: then it holds what the hook returned.
    """
    gradient = parameter.grad
    if gradient is None:
        return True
    return gradient._version == before and gradient.data_ptr() != bucket.data_ptr()


def _said(ranks: Sequence[int]) -> str:
    more = ", ..." if len(ranks) > 8 else ""
    return f"ranks {', '.join(str(each) for each in ranks[:8])}{more}"
