"""What values become that travel in few bits: rules of docs/algorithms.md, over blocks of a row.

code(wire, x) returns what a receiver decodes. The last block of a row may be shorter. Pure.
"""

from __future__ import annotations

import torch
from torch.nn import functional

LEVELS_4BIT = (-110, -85, -65, -48, -34, -21, -10, 0, 10, 20, 31, 45, 60, 79, 100, 127)
BLOCK = {
    "bf16": 256,
    "fp16": 256,
    "int8": 256,
    "4bit": 64,
    "2bit": 256,
    "ternary": 320,
    "sign": 256,
}
# Of a value; and of a block's scales.
VALUE_BITS = {"bf16": 16, "fp16": 16, "int8": 8, "4bit": 4, "2bit": 2, "ternary": 1.6, "sign": 1}
SCALE_BITS = {"bf16": 0, "fp16": 0, "int8": 16, "4bit": 16, "2bit": 64, "ternary": 16, "sign": 32}


# The level nearest to -128 ... 128 units; of two the one nearer to 0.
_4BIT_OF = torch.tensor(
    [float(min(LEVELS_4BIT, key=lambda v: (abs(v - at), abs(v)))) for at in range(-128, 129)]
)


def bytes_of(wire: str, elements: int) -> float:
    """Of so many values, scales included."""
    blocks = -(-elements // BLOCK[wire])
    return (elements * VALUE_BITS[wire] + blocks * SCALE_BITS[wire]) / 8


def code(wire: str, x: torch.Tensor) -> torch.Tensor:
    """x (rows, d), float32 and finite, as decoded; the same shape."""
    if wire in ("bf16", "fp16"):
        kind = torch.bfloat16 if wire == "bf16" else torch.float16
        return x.clamp(-65504, 65504).to(kind).to(x.dtype) if wire == "fp16" else x.to(kind).float()
    size = BLOCK[wire]
    d = x.shape[1]
    padded = functional.pad(x, (0, -d % size)).unflatten(1, (-1, size))
    if wire in ("2bit", "ternary", "sign"):
        present = functional.pad(torch.ones(d, dtype=torch.bool), (0, -d % size)).view(-1, size)
        decoded = _signed_means(padded, present, wire)
    else:
        decoded = (_int8 if wire == "int8" else _4bit)(padded)
    return decoded.flatten(1)[:, :d]


def _int8(blocks: torch.Tensor) -> torch.Tensor:
    """Whole numbers up to 127 times the smallest power of two that allows it."""
    largest = blocks.abs().amax(2, keepdim=True)
    mantissa, exponent = torch.frexp(largest / 127)
    exponent = torch.where(mantissa == 0.5, exponent - 1, exponent)
    unit = torch.ldexp(torch.ones_like(largest), exponent)
    unit = torch.where(largest > 127 * unit, 2 * unit, unit)  # where the division rounded down
    return torch.where(largest > 0, (blocks / unit).round() * unit, 0.0)


def _4bit(blocks: torch.Tensor) -> torch.Tensor:
    """The nearest of sixteen multiples of a unit; the largest magnitude is about 127 of it."""
    largest = blocks.abs().amax(2, keepdim=True)
    unit = (largest / 127).clamp(min=torch.finfo(torch.float32).tiny)
    unit = (unit.view(torch.int32) & -(1 << 16)).view(torch.float32)
    unit = torch.where(blocks.amax(2, keepdim=True) >= largest, unit, -unit)
    units = (blocks * (1 / unit)).round_().clamp_(-128, 128).to(torch.int32).add_(128)
    return _4BIT_OF[units].mul_(unit).add_(0.0)  # zeros are +0


def _signed_means(blocks: torch.Tensor, present: torch.Tensor, wire: str) -> torch.Tensor:
    """Signs times the mean magnitude, or times one of two: of those up to it and above it.

    ternary: instead of the smaller one 0, and of the larger one the first 16 bits. Where no
    magnitude is above the mean, all are the mean.
    """
    magnitudes = blocks.abs()
    sums, count = magnitudes.sum(2, keepdim=True, dtype=torch.float64), present.sum(1)[:, None]
    mean = sums / count
    scale = _cut(mean)
    if wire != "sign":
        high = magnitudes > mean
        upper = (magnitudes * high).sum(2, keepdim=True, dtype=torch.float64)
        above = high.sum(2, keepdim=True)
        smaller = _cut((sums - upper) / (count - above).clamp(min=1))
        larger = _cut(upper / above.clamp(min=1))
        if wire == "ternary":
            larger = torch.where(above > 0, larger, scale)
            larger = (larger.view(torch.int32) & -(1 << 16)).view(torch.float32)
            high = torch.where(above > 0, high, True) & (blocks != 0)
            smaller = torch.zeros_like(larger)
        scale = torch.where(high, larger, smaller)
    return torch.where((blocks < 0) & (scale > 0), -scale, scale)


def _cut(means: torch.Tensor) -> torch.Tensor:
    """24 bits of them, cut."""
    return (means.view(torch.int64) & -(1 << 29)).view(torch.float64).float()
