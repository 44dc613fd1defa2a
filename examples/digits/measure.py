"""Where the time and the bytes of a training step go.

Knows clocks, the interface's counters and the parameters' bits; must not know which backend runs.
"""

from __future__ import annotations

import hashlib
import resource
import time
from collections.abc import Callable, Sequence

import torch

# The first steps of a phase do not count: DDP rebuilds its buckets after the first one, and
# libraries allocate.
SETTLING_STEPS = 2


class StepClock:
    """Splits each step into computing, compressing and communicating.

    A step's gradients are ready when the last one has been accumulated; from then until backward
    returns the rank only waits for the reduction. Of this wait, the time that the engine spent
    selecting and committing is called compress, and the rest communicate (including waiting for
    slower ranks); all other time of the step is compute. What travels or is compressed while
    backward runs costs nothing here, as it costs the training nothing.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        phases: Sequence[tuple[str, int]],
        interface: str | None,
        compressing: Callable[[], float],
    ) -> None:
        """phases: (name, steps) in order; interface: whose bytes to count, or None; compressing:
        returns the seconds that the engine has spent on compression so far."""
        self._phases = phases
        self._interface = interface
        self._compressing = compressing
        self._losses: list[float] = []
        self._ends: list[float] = []
        self._steps: list[tuple[float, float, float]] = []
        self._marks: list[dict] = []
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(self._gradient_ready)

    def _gradient_ready(self, _: torch.Tensor) -> None:
        self._ready = time.perf_counter()

    def start(self) -> None:
        """Call when the training begins."""
        self._start = time.perf_counter()
        self._mark()

    def step_begins(self) -> None:
        """Call before the forward pass."""
        self._begin = time.perf_counter()
        self._compressed = self._compressing()

    def gradients_reduced(self) -> None:
        """Call when backward has returned and gradients are reduced."""
        self._wait = time.perf_counter() - self._ready

    def step_ends(self, loss: float) -> None:
        """Call when the optimizer has stepped."""
        now = time.perf_counter()
        compress = min(self._wait, self._compressing() - self._compressed)
        self._steps.append((now - self._begin, compress, self._wait - compress))
        self._losses.append(loss)
        self._ends.append(now - self._start)
        if len(self._steps) in self._boundaries():
            self._mark()

    def stop(self) -> None:
        """Call when the training is over."""
        self._seconds = time.perf_counter() - self._start

    def _boundaries(self) -> list[int]:
        ends, total = [], 0
        for _, steps in self._phases:
            total += steps
            ends.append(total)
        return ends

    def _mark(self) -> None:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        self._marks.append(
            {
                "bytes": interface_bytes(self._interface),
                "cpu": usage.ru_utime + usage.ru_stime,
                "ticks": machine_ticks(),
            }
        )

    def record(self) -> dict:
        """seconds; losses and ends (seconds since the start) by step; phases with steps, mean
        seconds per step (step, compress, communicate), cpu_seconds of this rank, cores_busy (0…1,
        of the machine) and bytes_sent (or None)."""
        phases, first = [], 0
        for index, (name, count) in enumerate(self._phases):
            settled = self._steps[first + min(SETTLING_STEPS, count - 1) : first + count]
            before, after = self._marks[index], self._marks[index + 1]
            step, compress, communicate = (
                sum(column) / len(settled) for column in zip(*settled, strict=True)
            )
            busy, total = (b - a for a, b in zip(before["ticks"], after["ticks"], strict=True))
            sent = None if before["bytes"] is None else after["bytes"] - before["bytes"]
            phases.append(
                {
                    "name": name,
                    "steps": count,
                    "step": step,
                    "compress": compress,
                    "communicate": communicate,
                    "cpu_seconds": after["cpu"] - before["cpu"],
                    "cores_busy": busy / max(1, total),
                    "bytes_sent": sent,
                }
            )
            first += count
        return {
            "seconds": self._seconds,
            "losses": self._losses,
            "ends": self._ends,
            "phases": phases,
        }


def interface_bytes(interface: str | None) -> int | None:
    """Bytes that the interface has sent since it was created; None without an interface."""
    if interface is None:
        return None
    with open(f"/sys/class/net/{interface}/statistics/tx_bytes", encoding="ascii") as counter:
        return int(counter.read())


def machine_ticks() -> tuple[int, int]:
    """(busy, all) clock ticks of all the machine's cores since boot."""
    with open("/proc/stat", encoding="ascii") as stat:
        ticks = [int(field) for field in stat.readline().split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def parameter_hash(model: torch.nn.Module) -> str:
    """SHA-256 over the bits of all parameters, in order."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
