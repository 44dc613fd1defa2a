"""Draws the demos' measurements: docs/results/demo.svg and demo-outer.svg.

The first is drawn from its table in docs/notebook.md, and the second from the record of `tools/demo
--outer`.
"""

from __future__ import annotations

import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
NOTEBOOK = ROOT / "docs" / "notebook.md"
RESULTS = ROOT / "docs" / "results"

sys.path.insert(0, str(ROOT / "examples" / "outer"))
import compare  # noqa: E402

PARTS = {"compute": "#4c78a8", "compress": "#f2b134", "communicate": "#d1495b"}
LEFT, WIDTH, BAR, GAP, TOP = 190, 760, 26, 20, 64  # in pixels
FONT = 'font-family="sans-serif" font-size="14"'

Row = dict[str, str]


def rows(notebook: str) -> list[Row]:
    """Return the rows of the table below "The demo", by the names of its columns."""
    section = notebook.split("\n## The demo\n", 1)[1]
    table = section.split("\n\n|", 1)[1].split("\n\n", 1)[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    names = ["way", *cells[0][1:]]
    return [dict(zip(names, line, strict=True)) for line in cells[2:]]


def number(text: str) -> float:
    return float(text.replace(",", "")) if text else 0.0


def bar(row: Row, top: int, scale: float) -> list[str]:
    """Draw one row: a label, its stacked parts, and the time and bytes of the whole step."""
    middle = top + BAR - 8
    drawn = [f'<text x="{LEFT - 10}" y="{middle}" text-anchor="end">{row["way"]}</text>']
    left = float(LEFT)
    for name, color in PARTS.items():
        width = number(row[name]) * scale
        if width:
            box = f'x="{left:.1f}" y="{top}" width="{width:.1f}" height="{BAR}"'
            drawn.append(f'<rect {box} fill="{color}"/>')
        left += width
    sent = round(number(row["sent per step (kB)"]))
    text = f"{number(row['step']):.0f} ms, {sent:,} kB sent"
    return [*drawn, f'<text x="{left + 8:.1f}" y="{middle}">{text}</text>']


def svg(table: list[Row]) -> str:
    scale = (WIDTH - LEFT - 190) / max(number(row["step"]) for row in table)
    height = TOP + len(table) * (BAR + GAP)
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {FONT}>',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        '<text x="10" y="24">A training step of ResNet-20, 4 hosts at 100 Mbit/s</text>',
    ]
    for place, (name, color) in enumerate(PARTS.items()):
        left = LEFT + 120 * place
        drawn.append(f'<rect x="{left}" y="38" width="12" height="12" fill="{color}"/>')
        drawn.append(f'<text x="{left + 18}" y="49">{name}</text>')
    for place, row in enumerate(table):
        drawn += bar(row, TOP + place * (BAR + GAP), scale)
    return "\n".join([*drawn, "</svg>", ""])


def picture() -> str:
    """Draw the table that is in the notebook now."""
    table = rows(NOTEBOOK.read_text(encoding="utf-8"))
    for row in table:
        row["way"] = re.sub("^after its", "after the", row["way"])
    return svg(table)


def outer() -> tuple[str, str]:
    """Return the picture of the committed record, and its table, which docs/outer.md has."""
    record = json.loads((RESULTS / "records" / "demo-outer.json").read_text(encoding="utf-8"))
    return compare.picture(record["title"], record["runs"]), compare.table(record["runs"])


if __name__ == "__main__":
    (RESULTS / "demo.svg").write_text(picture(), encoding="utf-8")
    (RESULTS / "demo-outer.svg").write_text(outer()[0], encoding="utf-8")
    print(outer()[1])
