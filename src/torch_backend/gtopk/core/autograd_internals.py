"""Which backward runs on this thread, and when it ends. Autograd tells it only in private."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch

from gtopk.core.torch_versions import check_torch

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

check_torch(__name__, (2, 11), (2, 15))


def current_backward() -> int | None:
    """Return autograd's number of the backward that runs on this thread; None outside of one."""
    number = int(torch._C._current_graph_task_id())
    return None if number == -1 else number


def at_end_of_backward(call: Callable[[], None]) -> None:
    """Call this when the current backward has succeeded, after what was registered before."""
    torch.autograd.Variable._execution_engine.queue_callback(call)


def recomputes() -> bool:
    """Whether re-entrant checkpointing runs this backward, by its frame on the stack."""
    checkpoint = sys.modules.get("torch.utils.checkpoint")
    code = getattr(getattr(checkpoint, "CheckpointFunction", None), "backward", None)
    frame: FrameType | None = sys._getframe()
    while frame is not None and code is not None:
        if frame.f_code is code.__code__:
            return True
        frame = frame.f_back
    return False
