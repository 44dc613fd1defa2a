"""What torch knows of backwards, groups and tensors but exposes only in private APIs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from gtopk.core._native import check_torch

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

check_torch(__name__, (2, 11), (2, 15))


def current_backward() -> int | None:
    """Return autograd's number of the backward on this thread; None outside a backward."""
    number = int(torch._C._current_graph_task_id())
    return None if number == -1 else number


def at_end_of_backward(call: Callable[[], None]) -> None:
    """Run `call` once the current backward has succeeded, after calls registered earlier."""
    torch.autograd.Variable._execution_engine.queue_callback(call)


def recomputes() -> bool:
    """Return whether re-entrant checkpointing runs this backward, judging by the stack."""
    checkpoint = sys.modules.get("torch.utils.checkpoint")
    code = getattr(getattr(checkpoint, "CheckpointFunction", None), "backward", None)
    frame: FrameType | None = sys._getframe()
    while frame is not None and code is not None:
        if frame.f_code is code.__code__:
            return True
        frame = frame.f_back
    return False


def default_group() -> dist.ProcessGroup:
    """Return the default group; raise ValueError if there is none."""
    return dist.distributed_c10d._get_default_group()


def is_outside(group: dist.ProcessGroup | None, call: str) -> bool:
    """Return whether this rank is outside the group; if so, warn that a call has no effect.

    call: the name of the call, for the warning.
    """
    outside = bool(dist.distributed_c10d._rank_not_in_group(group))
    if outside:
        dist.distributed_c10d._warn_not_in_group(call)
    return outside


def devices_of(group: dist.ProcessGroup) -> list[torch.device]:
    """Return the types of device that the group has a backend for."""
    return sorted(group._device_types, key=str)


def backend_on(group: dist.ProcessGroup, device: torch.device) -> Any:
    """Return the group's backend for a device of this type."""
    return group._get_backend(device)


def private_device() -> str:
    """Return the name of the device type that another package may add."""
    return str(torch._C._get_privateuse1_backend_name())


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Return whether the tensor certainly has overlapping elements."""
    return bool(torch._debug_has_internal_overlap(tensor) == 1)
