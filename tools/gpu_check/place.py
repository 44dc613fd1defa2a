"""The argument of a part: which rank this is, and its device."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import torch


@dataclasses.dataclass
class Place:
    rank: int
    size: int
    device: str
    small: bool
    """Whether figures are of no interest."""

    def to(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.device)

    def synchronize(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()
        else:
            torch.zeros(1).to(self.device).cpu()

    def seconds(self, step: Callable[[], object], times: int) -> list[float]:
        """Return the seconds of each step, from its call until the device has done it."""
        taken = []
        for _ in range(times):
            self.synchronize()
            begin = time.perf_counter()
            step()
            self.synchronize()
            taken.append(time.perf_counter() - begin)
        return taken
