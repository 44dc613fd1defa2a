"""gtopk.sparse_all_reduce: the arguments of one call, checked before anything is sent.

docs/algorithms.md defines the result; the native part computes it.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp
from torch.distributed.distributed_c10d import Work

from gtopk.core.groups import backend_of
from gtopk.core.torch_internals import is_outside, overlaps_itself, private_device
from gtopk.core.tracing import untraced
from gtopk.ops.options import SparseOptions

# For the half types, acc, the merge and the residual are float32.
ACCUMULATION = {
    torch.float32: torch.float32,
    torch.float64: torch.float64,
    torch.bfloat16: torch.float32,
    torch.float16: torch.float32,
}

# The length of a selector's state, as in the core.
_STATE_NUMBERS = 4


@untraced
def sparse_all_reduce(
    tensor: torch.Tensor | Sequence[torch.Tensor],
    *,
    k: int | None = None,
    density: float | None = None,
    residual: torch.Tensor | None = None,
    state: torch.Tensor | None = None,
    algorithm: str = "gtopk",
    select: str = "exact",
    block: int = 4096,
    put_back: str = "own",
    wire: str | None = None,
    semantics: str = "any",
    op: ReduceOp | ReduceOp.RedOpType = ReduceOp.SUM,
    mean: str = "ranks",
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Sum what each rank selects from ``tensor + residual``, in place.

    Each rank selects the k entries of largest magnitude of ``acc = tensor + residual`` (ties go to
    the smaller index; zeros are never selected). The lists are merged along a tree of the ranks,
    keeping k entries at each node (gTop-k: Shi et al., arXiv 1901.04359, Alg. 3). Entries that were
    not delivered stay in the residuals: the sum over ranks of acc is the result plus the sum of the
    residuals, up to floating-point rounding. Collective: every rank of the group must call it, with
    the same arguments except for the values.

    Args:
        tensor: the gradient; dense, any shape and strides, on the CPU or a CUDA device; float32,
            float64, bfloat16 or float16. It becomes the reduced gradient, bitwise equal on all
            ranks and zero where nothing was delivered. A tensor that is not contiguous is copied in
            and out. A list of tensors of one dtype and device, each contiguous, is one vector of
            all their elements, in this order: nothing is copied, and ranks may split the vector
            differently.
        k: entries that each rank selects, k >= 1; at most all of the d = ``tensor.numel()``.
            "dense" needs neither k nor a density.
        density: instead of k, a fraction in (0, 1]; k = min(d, max(1, floor(density * d + 1/2))).
        residual: has the tensor's shape (for a list: one dimension, all elements) and device, and
            the accumulation type (float64 for float64, else float32). It receives what was not
            delivered. None means a residual of zeros that is discarded afterwards.
        state: for select="threshold": what the selector keeps from one step of this tensor to the
            next, on this rank only; float64 of shape (4,) on the CPU, initially zeros. It is
            written only if the step happened; other selectors write zeros. With None, each step
            starts afresh.
        algorithm: "gtopk" (recursive doubling), "gtopk-tree" (binomial tree and broadcast: the same
            bits, less traffic in total, a longer path), "topk" (the exact sum of all selections, up
            to k entries per rank), "dense" (all of acc; the residual becomes what the wire's
            rounding lost, or zero), "dense-placed" (on a wire that rounds, one rank of each host
            codes and sends the sum of its host's acc; otherwise "dense"), "rs-ag" (regions are
            reduced, re-selected and gathered: O(k) on the wire for any number of ranks), "exact"
            (the exact top k of the sum of all selections), "hierarchical" (the exact sum of the
            selections inside each host, then gTop-k between hosts: one list of k entries leaves a
            host, for any number of ranks on it; GTOPK_HOST in the environment names a rank's host),
            "gtopk-placed" (gTop-k with a tree in each host and one between them: also one list per
            host, in fewer steps if a host has many ranks) or "sketch" (SketchedSGD: the heaviest
            entries of the sum of all acc, found in summed count-sketches, then summed exactly; no
            indices travel, but 58k values do). Two are controls: "random-k" (k random indices, the
            same on all ranks, new ones in every call) and "true-topk" (the exact top k of the sum
            of all acc, at the cost of "dense"). "auto" picks the algorithm that is cheapest in this
            job among those that satisfy `semantics`; ``gtopk.plan`` and ``gtopk.stats()["plan"]``
            say which, and why. The first "auto" of a group measures the costs.
        select: "exact", or one that approximates it and selects up to ceil(4k/3) entries:
            "gaussian" (a normal quantile of mean and deviation, corrected), "sampled" (the top of a
            sample of 1 %, corrected) or "threshold" (last step's threshold, corrected, as long as
            2k/3 to 4k/3 entries reach it; otherwise, and without a `state`, like "exact"). Or
            "block", which selects separately from each block of elements, on each rank and wherever
            lists are merged; it needs a density.
        block: for select="block": elements per block; the last one may be shorter. A block of l
            elements sends min(l, max(1, floor(density * l + 1/2))) entries.
        put_back: where a value goes that was selected but not delivered. "own": back to the
            residual of the rank that selected it; "merged": summed, to the residual of the lowest
            rank of the tree node that dropped it.
        wire: how lists, and the values of "dense", are encoded; indices are always coded
            losslessly, except by "raw". None: values travel unchanged, in the accumulation type.
            "bf16", "fp16" (saturating), "int8", "4bit", "2bit", "ternary" or "sign" ("int8" and all
            later ones have a scale per 256 entries, "4bit" per 64, "ternary" per 320): values are
            rounded, and the rounding error goes to a residual. From "4bit" on they make many values
            equal, so of the algorithms with lists only "topk" and "exact" accept them, which never
            select from rounded values. "ternary" (zero, or a sign times one magnitude per block) is
            for "dense"; lists travel as "sign". "raw" codes nothing, for networks that are faster
            than coding.
        semantics: what the result must guarantee. "dense": every element is sent in every step, on
            any wire; "exact_sum": at each delivered index, the sum of all values selected there
            ("topk", "exact", and "dense" on a wire that does not round); "gtopk": the same, or
            partial sums as in gTop-k; "any": no gradient mass is lost. "auto" picks only algorithms
            that satisfy it; an explicit algorithm must satisfy it.
        op: SUM, or AVG: the final sum divided by the number of ranks in the accumulation type, then
            rounded once. Residuals are never averaged.
        mean: what AVG divides by. "ranks": the sum is divided by the number of ranks;
            "contributors": at each index, the sum is divided by the number of ranks that sent it,
            which travels with merged lists. This needs algorithm "topk" or "exact", which deliver
            whole sums of what was selected.
        group: a process group of backend gtopk; None is the default group.
        async_op: return immediately; do not touch the tensors until the Work is done.

    Returns:
        With async_op, a Work whose future holds ``[tensor]``, or the list; otherwise None, once
        complete. On a rank that is not in the group, always None.

    If any rank's acc contains a NaN or infinity, or a sum overflows, the tensor becomes NaN on
    every rank, and every residual is unchanged.

    Raises:
        ValueError: an invalid argument. Nothing was sent; the group remains usable.
        NotImplementedError: a device or a combination of arguments that is not implemented.
        torch.distributed.DistBackendError: raised here, by ``Work.wait``, or as the future's
            exception: ranks called with different arguments (the error names both sides' values;
            the group remains usable), a rank died, or the group's timeout passed. Tensor and
            residual are then unchanged.
    """
    if is_outside(group, "sparse_all_reduce"):
        return None
    options = SparseOptions(
        k, density, algorithm, select, block, put_back, wire, semantics, op, mean
    )
    pieces = _pieces(tensor)
    d = sum(each.numel() for each in pieces)
    if residual is not None:
        one = isinstance(tensor, torch.Tensor)
        _check_residual(residual, pieces, pieces[0].shape if one else torch.Size([d]))
    if state is not None:
        _check_state(state, [*pieces, *([] if residual is None else [residual])])
    work = backend_of(group).sparse_all_reduce(pieces, options, residual, state=state)
    if async_op:
        return work
    work.wait()
    return None


def check_tensor(tensor: torch.Tensor, what: str = "tensor", *, cpu: bool = False) -> None:
    """Raise ValueError unless `tensor` is dense, and of a type that can be reduced sparsely.

    Raise NotImplementedError for an unsupported device. cpu: accept only the CPU.
    """
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"gtopk: {what} must be a torch.Tensor, given {type(tensor).__name__}")
    if is_sharded(tensor):
        raise ValueError(
            f"gtopk: {what} is sharded over ranks ({type(tensor).__name__}): pass its local "
            "tensor (to_local()) and the group over which it is replicated"
        )
    if tensor.layout != torch.strided:
        raise ValueError(f"gtopk: {what} must be dense, given layout {tensor.layout}")
    if tensor.device.type != "cpu" and (cpu or not is_served(tensor.device)):
        devices = "the CPU" if cpu else "the CPU or a CUDA device"
        raise NotImplementedError(
            f"gtopk: {what} must be on {devices}, given one on {tensor.device}: use another "
            "backend for it, or copy it to the CPU"
        )
    if tensor.dtype not in ACCUMULATION:
        types = ", ".join(str(dtype).removeprefix("torch.") for dtype in ACCUMULATION)
        raise ValueError(f"gtopk: {what} must be one of {types}, given {tensor.dtype}")
    if overlaps_itself(tensor):
        raise ValueError(
            f"gtopk: {what} has overlapping elements (strides {tensor.stride()}), so no result can "
            "be written to it: pass a copy (clone())"
        )


def is_served(device: torch.device) -> bool:
    """Return whether tensors on the device are accepted: CPU, CUDA, or the tests' fake device."""
    if device.type in ("cpu", "cuda"):
        return True
    return device.type == private_device() and "GTOPK_CUDA_DRIVER" in os.environ


def is_sharded(tensor: torch.Tensor) -> bool:
    """Return whether this is an FSDP shard: a DTensor (FSDP 2) or a FlatParameter (FSDP 1)."""
    if getattr(tensor, "_is_flat_param", False):
        return True
    # Compare names along the classes: importing torch.distributed.tensor would take a second.
    return any(each.__name__ == "DTensor" for each in type(tensor).__mro__)


def _pieces(tensor: torch.Tensor | Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Check the argument `tensor`; return its pieces."""
    if not isinstance(tensor, (list, tuple)):
        check_tensor(tensor)  # type: ignore[arg-type]  # a Sequence that is not a list is refused
        return [tensor]  # type: ignore[list-item]
    if not tensor:
        raise ValueError(
            "gtopk: tensor must be a tensor or a list of at least one, given an empty list"
        )
    for i, each in enumerate(tensor):
        check_tensor(each, f"tensor[{i}]")
        if each.device != tensor[0].device:
            raise ValueError(
                f"gtopk: the tensors of a list must be on one device: tensor[0] is on "
                f"{tensor[0].device}, tensor[{i}] on {each.device}"
            )
        if each.dtype != tensor[0].dtype:
            raise ValueError(
                f"gtopk: the tensors of a list must be of one dtype: tensor[0] is "
                f"{tensor[0].dtype}, tensor[{i}] is {each.dtype}"
            )
        if not each.is_contiguous() or each.is_neg():
            raise ValueError(
                f"gtopk: the tensors of a list must be contiguous, tensor[{i}] has shape "
                f"{tuple(each.shape)} and strides {each.stride()}: pass tensor.contiguous()"
            )
    in_memory = sorted((_range(each), i) for i, each in enumerate(tensor) if each.numel())
    for ((_, end), i), ((begin, _), j) in itertools.pairwise(in_memory):
        if begin < end:
            raise ValueError(f"gtopk: tensor[{min(i, j)}] and tensor[{max(i, j)}] share memory")
    return list(tensor)


def _check_residual(
    residual: torch.Tensor, pieces: Sequence[torch.Tensor], shape: torch.Size
) -> None:
    check_tensor(residual, "residual")
    dtype = pieces[0].dtype
    wanted = ACCUMULATION[dtype]
    if residual.dtype != wanted or residual.shape != shape:
        raise ValueError(
            f"gtopk: residual of a {dtype} tensor must be {wanted} of shape "
            f"{tuple(shape)}, given {residual.dtype} of shape {tuple(residual.shape)}"
        )
    if residual.device != pieces[0].device:
        raise ValueError(
            f"gtopk: residual must be on {pieces[0].device} like the tensor, given one on "
            f"{residual.device}"
        )
    if any(_share_memory(residual, each) for each in pieces):
        raise ValueError("gtopk: residual and tensor must not share memory")


def new_selector_state() -> torch.Tensor:
    """Return a selector's initial state."""
    with torch.inference_mode(False):  # so that the backward can write it
        return torch.zeros(_STATE_NUMBERS, dtype=torch.float64, device="cpu")


def is_selector_state(state: object) -> bool:
    """Return whether `state` has the type and shape of a selector state."""
    return (
        isinstance(state, torch.Tensor)
        and state.layout == torch.strided
        and state.dtype == torch.float64
        and state.shape == (_STATE_NUMBERS,)
    )


def _check_state(state: torch.Tensor, others: Sequence[torch.Tensor]) -> None:
    check_tensor(state, "state", cpu=True)
    if not is_selector_state(state) or not state.is_contiguous():
        raise ValueError(
            f"gtopk: state must be contiguous torch.float64 of shape ({_STATE_NUMBERS},), given "
            f"{state.dtype} of shape {tuple(state.shape)} and strides {state.stride()}"
        )
    if any(_share_memory(state, each) for each in others):
        raise ValueError("gtopk: state must not share memory with tensor or residual")


def _share_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two tensors share a byte; gaps between elements do not count."""
    (first_a, last_a), (first_b, last_b) = _range(a), _range(b)
    if first_a >= last_b or first_b >= last_a:
        return False
    # In this rare case, mark the bytes of both tensors in a map of the range that they span.
    first = min(first_a, first_b)
    taken = torch.zeros(max(last_a, last_b) - first, dtype=torch.bool, device="cpu")
    _bytes(taken, a, first_a - first).fill_(True)
    return bool(_bytes(taken, b, first_b - first).any())


def _range(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the first byte's address and the address past the last; equal for an empty tensor."""
    first = tensor.data_ptr()
    if not tensor.numel():
        return first, first
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    elements = 1 + sum((size - 1) * stride for size, stride in steps)
    return first, first + elements * tensor.element_size()


def _bytes(memory: torch.Tensor, tensor: torch.Tensor, offset: int) -> torch.Tensor:
    """View the bytes of `tensor`, one element each, in `memory` from `offset` on."""
    size = tensor.element_size()
    strides = [stride * size for stride in tensor.stride()]
    return memory.as_strided([*tensor.shape, size], [*strides, 1], offset)
