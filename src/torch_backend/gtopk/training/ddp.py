"""gtopk.sparse_hook, the DDP communication hook, and gtopk.attach, which registers it."""

# No `from __future__ import annotations`: DDP compares a hook's annotations with these types.
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import Unpack

from gtopk.core.groups import backend_of, has_ranks_that_change
from gtopk.core.tracing import untraced
from gtopk.state.config import Share, SparseArguments, shows
from gtopk.training.ddp_backward import BucketSource
from gtopk.training.ddp_internals import check_free, check_options, note_ddp, with_sparse_gradients
from gtopk.training.frameworks import ddp_of
from gtopk.training.sparse_state import SparseState


@untraced
def sparse_hook(state: SparseState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Exchange a bucket's gradients sparsely, overlapping the backward.

    ``gtopk.attach(ddp, density=…)`` makes the state and registers this hook. To register it
    yourself, call ``ddp.register_comm_hook(state, gtopk.sparse_hook)``. The first backward compares
    the ranks' states.

    Args:
        state: a SparseState for the parameters of the model that DDP wraps.
        bucket: DDP's bucket, which holds this rank's gradients, not divided by the number of ranks.

    Returns:
        A future for the bucket's buffer, averaged over the ranks. If the exchange fails, the error
        is the future's exception, which DDP raises from ``backward()``.

    Raises:
        ValueError: DDP and the state have different parameters (except those with sparse COO
            gradients, which are summed exactly and must not be in the state); the ranks' states
            differ; or the state's group is not a gtopk group or has other ranks than DDP's.
        NotImplementedError: DDP's mixed_precision and delay_all_reduce_named_params.
    """
    if not isinstance(state, SparseState):
        raise ValueError(
            f"gtopk: the state of sparse_hook must be a SparseState, given {type(state).__name__}: "
            "call gtopk.attach(ddp, density=…), which makes one"
        )
    source = state.backward.source
    if not isinstance(source, BucketSource):
        raise ValueError(
            "gtopk: this SparseState belongs to a DistributedOptimizer or to FSDP: make another "
            "one for the DDP, with gtopk.attach(ddp, density=…)"
        )
    return source.arrive(bucket)


@shows(SparseArguments)
def attach(
    ddp: DistributedDataParallel,
    density: Share | None = None,
    **arguments: Unpack[SparseArguments],
) -> SparseState:
    """Exchange the gradients of `ddp` sparsely from now on.

    For example: ``state = gtopk.attach(DistributedDataParallel(model), density=0.001)``.

    Args:
        ddp: the DDP, or what torch.compile returned for it; the state takes over its parameters and
            its process group. A copy of an attached DDP has no hook: attach it as well.
        density: see SparseState.
        arguments: the other arguments of SparseState, except the parameters and the group.

    Sparse COO gradients, for example of ``nn.Embedding(sparse=True)``, are averaged exactly, and
    their parameters are not part of the state. They count towards `clip_norm` (with clip="unit",
    each is a unit). With `scaler`, they become NaN if a unit is not finite, and vice versa.

    Returns:
        The state. It holds the residuals, which belong in a checkpoint, and the density, which can
        be set.

    Raises:
        ValueError: `ddp` is not a DistributedDataParallel, or its process group has a backend
            other than gtopk; and as SparseState.
        NotImplementedError: as SparseState; sparse COO gradients together with momentum, which
            would make them dense; DDP's mixed_precision, whose own hook casts on an accelerator's
            streams (compute under torch.autocast instead); and its delay_all_reduce_named_params.
        RuntimeError: `ddp` already has a communication hook.
    """
    ddp = ddp_of(ddp)
    check_options(ddp)
    check_free(ddp)
    left_out = _left_out(ddp, arguments)
    parameters = [each for each in ddp.module.named_parameters() if each[0] not in left_out]
    state = SparseState(parameters, density, group=ddp.process_group, **arguments)
    if not has_ranks_that_change(ddp.process_group):  # a ReplicaGroup may have no ranks yet
        backend_of(ddp.process_group)
    ddp.register_comm_hook(state, sparse_hook)
    note_ddp(ddp)
    source = state.backward.source
    assert isinstance(source, BucketSource)
    source.serve(ddp)
    return state


def _left_out(ddp: DistributedDataParallel, arguments: SparseArguments) -> set[str]:
    """Return the names of parameters that DDP does not reduce, or reduces as sparse COO."""
    ids = with_sparse_gradients(ddp.module)
    sparse = {name for name, each in ddp.module.named_parameters() if id(each) in ids}
    sparse -= set(ddp.parameters_to_ignore)
    if sparse and arguments.get("momentum"):
        raise NotImplementedError(
            f"gtopk: the gradient of '{min(sparse)}' is sparse COO, and momentum= would make it "
            "dense: make its module with sparse=False, or leave momentum to the optimizer"
        )
    return sparse | set(ddp.parameters_to_ignore)
