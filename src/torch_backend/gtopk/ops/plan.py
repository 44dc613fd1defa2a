"""gtopk.plan: which algorithm `auto` picks for a call, and why.

docs/algorithms.md describes the model; the native part computes it.
"""

from __future__ import annotations

from typing import Any, TypedDict

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from gtopk.core.groups import backend_of
from gtopk.core.torch_internals import is_outside
from gtopk.ops.options import SparseOptions, check_whole
from gtopk.ops.sparse_all_reduce import check_tensor


class Prediction(TypedDict):
    """The predicted cost of a call with one algorithm."""

    seconds: float
    """The call's duration."""
    messages: int
    """Messages on the critical path."""
    bytes: float
    """Bytes of these messages, including headers."""
    host_bytes: float
    """Bytes on the busiest host's link during the call, for all its ranks."""


class Plan(TypedDict):
    """What was chosen for a call, and why; the same on all ranks except for `actual_seconds`."""

    algorithm: str
    """The algorithm chosen."""
    reason: str
    """In words: its predicted milliseconds, in parts, and those of the runner-up."""
    predictions: dict[str, Prediction]
    """Predictions by algorithm, for all that the semantics allow."""
    costs: dict[str, float]
    """Nanoseconds as measured in this job: per message and byte, inside hosts (`message_within`,
    `byte_within`) and between hosts (`message_between`, `byte_between`; 0 if there is no such
    link), and per element or entry."""
    measured_by: int
    """The number of the collective in the group that measured the costs."""
    actual_seconds: float
    """The call's duration on this rank, from the choice to its end; 0 if it was not run."""


def plan(
    d: int,
    *,
    k: int | None = None,
    density: float | None = None,
    dtype: torch.dtype = torch.float32,
    select: str = "exact",
    block: int = 4096,
    wire: str | None = None,
    semantics: str = "any",
    mean: str = "ranks",
    group: dist.ProcessGroup | None = None,
    refresh: bool = False,
) -> Plan | None:
    """Predict the cost of a sparse all-reduce of d elements with each algorithm.

    Collective: every rank of the group must call it, with the same arguments. The group's first
    plan, or first call with algorithm="auto", measures links and arithmetic, which takes tens of
    milliseconds, and more on slow links. docs/algorithms.md ("auto") describes the model.

    Args:
        d: number of elements of the tensor, 1 or more.
        k: number of entries that each rank selects; see gtopk.sparse_all_reduce.
        density: instead of k, a fraction in (0, 1].
        dtype: the tensor's type.
        select: the selector; gtopk.sparse_all_reduce explains it and the next three arguments.
        block: elements per block, for select="block".
        wire: how lists are encoded.
        semantics: what the result must guarantee.
        mean: "contributors" if the call uses that mean; all other calls send the same bytes.
        group: a process group of backend gtopk; None is the default group.
        refresh: measure again now. Otherwise costs are measured again after 10,000 more collectives
            of the group.

    Returns:
        The plan, the same on all ranks; None on a rank that is not in the group.

    Raises:
        ValueError: an invalid argument.
        torch.distributed.DistBackendError: ranks requested different plans, a rank died, or the
            group's timeout passed.
    """
    if is_outside(group, "plan"):
        return None
    op = ReduceOp.SUM if mean == "ranks" else ReduceOp.AVG
    options = SparseOptions(
        k, density, "auto", select, block, wire=wire, semantics=semantics, op=op, mean=mean
    )
    return plan_with(options, check_whole(d, "d", 1), dtype, group, refresh=bool(refresh))


def plan_with(
    options: SparseOptions,
    d: int,
    dtype: torch.dtype,
    group: dist.ProcessGroup | None,
    *,
    refresh: bool = False,
) -> Plan | None:
    """See plan(). Call it on a rank of the group, with options of any algorithm."""
    like = torch.empty(0, dtype=dtype, device="cpu")
    check_tensor(like, "dtype")
    return told(backend_of(group).plan(d, like, options, refresh))


def told(by_operator: tuple[Any, ...]) -> Plan | None:
    """Convert an operator's plan to a Plan; None if there is none."""
    algorithm, reason, seconds, messages, size, of_host, costs, measured_by, actual = by_operator
    if not algorithm:
        return None
    return {
        "algorithm": algorithm,
        "reason": reason,
        "predictions": {
            name: {
                "seconds": seconds[name],
                "messages": messages[name],
                "bytes": size[name],
                "host_bytes": of_host[name],
            }
            for name in seconds
        },
        "costs": dict(costs),
        "measured_by": measured_by,
        "actual_seconds": actual,
    }
