"""One shaped link: rate, MTU and bucket, as `tc tbf` takes them.

This module is pure and runs nothing. The settings decide whether a measurement can be trusted; see
docs/lab.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}

# These are Ethernet, IPv4 and TCP with timestamps, which tbf counts in addition to a segment's
# payload.
_HEADER_BYTES = 14 + 20 + 32

# This is the queue of a switch port. tbf drops frames beyond it; 4 MiB is a common switch's shared
# buffer.
_QUEUE_BYTES = 4 << 20


@dataclass(frozen=True)
class Shape:
    """One direction of one link.

    rate: in tc's notation ("100mbit"); mtu in bytes; burst: bytes of the token bucket, which pass
    freely after a pause; calibrated: whether it was probed, so that times may be claimed from it.
    """

    rate: str
    mtu: int
    burst: int
    calibrated: bool

    @staticmethod
    def of(rate: str, *, burst: int | None = None, mtu: int | None = None) -> Shape:
        """Return the settings for `rate` ("100mbit"), calibrated ones if they exist.

        A rate between two calibrated ones gets the settings of the next higher calibrated rate and
        is marked as not calibrated; so is any explicit burst or mtu. Raises ValueError for text
        other than a number and kbit, mbit or gbit.
        """
        speed = bits_per_second(rate)
        chosen = next((s for s in CALIBRATED.values() if s.bits_per_second >= speed), None)
        chosen = chosen or list(CALIBRATED.values())[-1]
        exact = chosen.bits_per_second == speed and burst is None and mtu is None
        return replace(
            chosen,
            rate=rate,
            mtu=mtu or chosen.mtu,
            burst=burst or chosen.burst,
            calibrated=exact,
        )

    @property
    def bits_per_second(self) -> float:
        """The rate as a number."""
        return bits_per_second(self.rate)

    def wire_bytes(self, payload: int) -> int:
        """Return the bytes of a TCP message of `payload` bytes on the link, including headers."""
        segment = self.mtu - 52
        return payload + _HEADER_BYTES * max(1, -(-payload // segment))

    def wire_seconds(self, payload: int) -> float:
        """Return the seconds of the link for a TCP message of `payload` bytes, without latency."""
        return self.wire_bytes(payload) * 8 / self.bits_per_second

    def soonest_seconds(self, payload: int) -> float:
        """Return a lower bound of a message's time on an idle link: a full bucket passes freely."""
        return max(0.0, (payload - self.burst) * 8 / self.bits_per_second)

    def tc(self, device: str) -> str:
        """Return the `tc -batch` line that shapes traffic leaving `device`."""
        return (
            f"qdisc add dev {device} root tbf rate {self.rate} burst {self.burst} "
            f"limit {_QUEUE_BYTES}"
        )


def bits_per_second(rate: str) -> float:
    """Return `"100mbit"` as 1e8. Raises ValueError with the accepted form."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)", rate)
    if match is None or float(match[1]) <= 0:
        raise ValueError(f"rate {rate!r}: expected a number with kbit, mbit or gbit, e.g. 100mbit")
    return float(match[1]) * _UNITS[match[2]]


# These were probed by `netlab probe`: gapped and back-to-back messages take the same time, and a
# dense all-reduce reaches its share of the wire. The table with the shares is in docs/lab.md.
CALIBRATED = {
    shape.rate: shape
    for shape in (
        Shape("10mbit", mtu=1500, burst=2 << 10, calibrated=True),
        Shape("50mbit", mtu=1500, burst=2 << 10, calibrated=True),
        Shape("100mbit", mtu=1500, burst=2 << 10, calibrated=True),
        Shape("200mbit", mtu=9000, burst=10 << 10, calibrated=True),
        Shape("300mbit", mtu=9000, burst=10 << 10, calibrated=True),
        Shape("1gbit", mtu=9000, burst=20 << 10, calibrated=True),
    )
}
