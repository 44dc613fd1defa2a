"""Draws lines over an axis as SVG: the same points give the same bytes on every machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

# These are colour-blind safe (Okabe and Ito's palette).
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00")
WIDTH, HEIGHT = 760, 360
LEFT, RIGHT, TOP, BOTTOM = 64, 740, 40, 312  # edges of the plane, in pixels
FONT = 'font-family="sans-serif" font-size="14"'


class Curve(NamedTuple):
    """A line and its name in the legend."""

    name: str
    points: Sequence[tuple[float, float]]


def ticks(low: float, high: float, about: int = 6) -> list[float]:
    """Return round numbers between the two, about as many as requested."""
    step = 10 ** math.floor(math.log10((high - low) / about))
    step *= next(each for each in (1, 2, 5, 10) if (high - low) / (step * each) <= about)
    return [step * i for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


Scale = Callable[[float], float]


def plane(x_ticks: list[float], y_ticks: list[float], x_of: Scale, y_of: Scale) -> list[str]:
    """Draw the axes' lines and numbers."""
    drawn = []
    for value in x_ticks:
        at = x_of(value)
        drawn.append(f'<path d="M{at:.1f} {TOP}V{BOTTOM}" stroke="#ddd"/>')
        text = f'x="{at:.1f}" y="{BOTTOM + 18}" text-anchor="middle"'
        drawn.append(f"<text {text}>{value:g}</text>")
    for value in y_ticks:
        at = y_of(value)
        drawn.append(f'<path d="M{LEFT} {at:.1f}H{RIGHT}" stroke="#ddd"/>')
        text = f'x="{LEFT - 8}" y="{at + 5:.1f}" text-anchor="end"'
        drawn.append(f"<text {text}>{value:g}</text>")
    return drawn


def svg(title: str, x_label: str, y_label: str, curves: Sequence[Curve]) -> str:
    """Draw the curves, each ending in a dot, with a legend at the upper right."""
    every = [point for curve in curves for point in curve.points]
    x_high = max(x for x, _ in every)
    y_low, y_high = min(y for _, y in every), max(y for _, y in every)

    def x_of(x: float) -> float:
        return LEFT + (RIGHT - LEFT - 10) * x / x_high

    def y_of(y: float) -> float:
        return BOTTOM - 10 - (BOTTOM - TOP - 20) * (y - y_low) / (y_high - y_low)

    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {FONT}>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="10" y="24">{title}</text>',
        *plane(ticks(0, x_high), ticks(y_low, y_high), x_of, y_of),
        f'<text x="{RIGHT}" y="{HEIGHT - 10}" text-anchor="end">{x_label}</text>',
        f'<text x="{LEFT + 6}" y="{TOP + 16}">{y_label}</text>',
    ]
    for place, (curve, colour) in enumerate(zip(curves, COLOURS, strict=False)):
        line = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in curve.points)
        x, y = curve.points[-1]
        height = TOP + 20 + 20 * place
        drawn += [
            f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>',
            f'<circle cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="4" fill="{colour}"/>',
            f'<path d="M440 {height - 5}h24" stroke="{colour}" stroke-width="3"/>',
            f'<text x="470" y="{height}">{curve.name}</text>',
        ]
    return "\n".join([*drawn, "</svg>", ""])
