"""A long link: delay, jitter, loss and forgotten connections, and the rates that textbooks predict
for TCP on it.

This module is pure and runs nothing. tools/netlab/switch delays and drops frames.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}

# These are TCP's header with timestamps and IPv4's.
_HEADERS = 52


@dataclass(frozen=True)
class Impairment:
    """What happens to every frame between two hosts, one way; in a round trip it happens twice.

    delay, jitter: seconds; a frame is delayed by a random time, uniform in delay ± jitter. loss:
    the probability, 0 to 1, that a frame is lost, independently of others. reorder: whether a frame
    may overtake frames before it; otherwise it waits for them. seed: replays losses and jitter.
    forget: seconds after which an idle TCP connection is forgotten and its segments are dropped, as
    by a NAT; 0 means never.
    """

    delay: float = 0.0
    jitter: float = 0.0
    loss: float = 0.0
    reorder: bool = False
    seed: int = 1
    forget: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.jitter <= self.delay <= 10:
            raise ValueError(
                f"delay {self.delay} s, jitter {self.jitter} s: expected 0 <= jitter <= delay <= 10"
            )
        if not 0 <= self.loss < 1:
            raise ValueError(f"loss {self.loss}: expected at least 0 and less than 1")
        if not 0 <= self.seed < 1 << 64:
            raise ValueError(f"seed {self.seed}: expected 0 to 2^64 - 1")
        if not 0 <= self.forget <= 1e6:
            raise ValueError(f"forget {self.forget} s: expected 0 (never) to 1e6")

    @staticmethod
    def of(
        delay: str = "0ms",
        jitter: str = "0ms",
        loss: str = "0%",
        *,
        reorder: bool = False,
        seed: int = 1,
        forget: str = "0s",
    ) -> Impairment:
        """Read text: "25ms", "2ms", "0.01%", "5s". Raises ValueError with the accepted form."""
        return Impairment(
            seconds(delay), seconds(jitter), share(loss), reorder, seed, seconds(forget)
        )

    def __str__(self) -> str:
        """Describe it in one line, including the round trip."""
        words = [f"{self.delay * 1e3:g} ms each way (round trip {self.delay * 2e3:g} ms)"]
        if self.jitter:
            words.append(f"jitter {self.jitter * 1e3:g} ms each way")
        words.append(f"loss {self.loss * 100:g} % each way")
        if self.reorder:
            words.append("frames may overtake")
        if self.forget:
            words.append(f"connections forgotten after {self.forget:g} s of silence")
        return ", ".join([*words, f"seed {self.seed}"])


def seconds(text: str) -> float:
    """Return `"25ms"` as 0.025."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(us|ms|s)", text)
    if match is None:
        raise ValueError(f"time {text!r}: expected a number with us, ms or s, e.g. 25ms")
    return float(match[1]) * _SECONDS[match[2]]


def share(text: str) -> float:
    """Return `"0.01%"` as 0.0001."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)%", text)
    if match is None or float(match[1]) >= 100:
        raise ValueError(f"loss {text!r}: expected a percentage below 100, e.g. 0.01%")
    return float(match[1]) / 100


def reno_bytes_per_second(mtu: int, rtt: float, loss: float) -> float:
    """Return a loss-limited Reno stream's rate: 1.22·MSS / (RTT·√p) (Mathis et al., 1997)."""
    return math.inf if loss == 0 else 1.22 * (mtu - _HEADERS) / (rtt * math.sqrt(loss))


def cubic_bytes_per_second(mtu: int, rtt: float, loss: float) -> float:
    """Return the same for CUBIC (RFC 8312, sections 4.2 and 5.1): 1.054·(RTT/p)^(3/4) segments in
    flight, or as many as Reno, whichever is more."""
    if loss == 0:
        return math.inf
    cubic = 1.054 * (rtt / loss) ** 0.75 * (mtu - _HEADERS) / rtt
    return max(cubic, reno_bytes_per_second(mtu, rtt, loss))
