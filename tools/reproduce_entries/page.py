"""Makes pages and plots from records; the same records give the same bytes."""

from __future__ import annotations

import io
import re
import string
import textwrap
from collections.abc import Iterable, Sequence

import matplotlib

matplotlib.use("Agg")

from matplotlib.figure import Figure

from reproduce_entries.entry import KINDS, Entry, Records

WIDTH = 100
# These are colour-blind safe (Okabe and Ito's palette).
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def wrapped(block: str) -> str:
    """Wrap a paragraph or a list; tables, headings and pictures stay as they are."""
    if block.startswith(("|", "#", "!", "    ")):
        return block
    items = re.split(r"\n(?=- )", block)
    return "\n".join(
        textwrap.fill(
            " ".join(item.split()),
            WIDTH,
            subsequent_indent="  " if item.startswith("- ") else "",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for item in items
    )


def kinds(records: Records) -> list[str]:
    present = {each.cell["kind"] for each in records}
    return [kind for kind in KINDS if kind in present]


def plan(entry: Entry) -> str:
    """Return the part of the template that was written before the entry ran."""
    blocks = entry.template.partition("**Found.**")[0].split("\n\n")
    return "\n\n".join(each for each in blocks if each and each != "$made")


def page(entry: Entry, records: Records, quick: bool) -> str:
    dates = sorted({each.date for each in records})
    span = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    said = "; ".join(f"*{kind}*: {KINDS[kind]}" for kind in kinds(records))
    made = (
        f"Made by `tools/reproduce {entry.name}` from `records/{entry.name}.jsonl` ({span}; "
        f"{sum(each.seconds for each in records):.0f} s in all); do not edit. {said}."
    )
    if quick:
        made += "\n\n**Quick: smaller cells than those of the committed page.**"
    title = entry.template.partition("\n")[0].removeprefix("# ")
    fields = {
        "made": made,
        "found": "\n".join(
            f"- {'Holds' if each.holds else '**Refuted**'}: {each.said}"
            for each in entry.checks(records)
        ),
        "plot": f"![{title}]({entry.name}.svg)",
    }
    text = string.Template(entry.template).substitute(fields | entry.fields(records))
    return "\n\n".join(wrapped(each) for each in text.strip().split("\n\n")) + "\n"


def plot(entry: Entry, records: Records) -> str:
    """Return an SVG without a date and with names that do not depend on the run."""
    with matplotlib.rc_context(
        {"svg.hashsalt": entry.name, "svg.fonttype": "none", "font.size": 9}
    ):
        figure = Figure(figsize=(8, 3.6), layout="constrained")
        entry.draw(records, figure)
        into = io.StringIO()
        figure.savefig(into, format="svg", metadata={"Date": None})
    lines = into.getvalue().splitlines()
    return "\n".join(line.rstrip() for line in lines) + "\n"
