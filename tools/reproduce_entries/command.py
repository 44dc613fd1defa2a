"""The command line: which entries run, where their records are, and which pages are made again."""

from __future__ import annotations

import argparse
import datetime
import pathlib
import time
from collections.abc import Sequence

import torch
from records import append, read
from tqdm import tqdm

from reproduce_entries import ROOT
from reproduce_entries.entry import Cell, Entry, Record
from reproduce_entries.page import page, plan, plot
from reproduce_entries.table import ENTRIES

FULL, QUICK = ROOT / "docs" / "results", ROOT / "build" / "reproduce"


def file_of(entry: Entry, into: pathlib.Path) -> pathlib.Path:
    return into / "records" / f"{entry.name}.jsonl"


def records_of(entry: Entry, into: pathlib.Path, cells: Sequence[Cell]) -> list[Record]:
    """Return the last record of each of these cells that has one, in the order of the cells."""
    found = [Record(**line) for line in read(file_of(entry, into))]
    each = ([record for record in found if record.cell == cell] for cell in cells)
    return [same[-1] for same in each if same]


def run(entry: Entry, into: pathlib.Path, quick: bool) -> None:
    """Runs the cells that have no record yet."""
    cells = entry.cells(quick)
    file_of(entry, into).parent.mkdir(parents=True, exist_ok=True)
    done = [record.cell for record in records_of(entry, into, cells)]
    with tqdm([cell for cell in cells if cell not in done], unit="cell", delay=5) as progress:
        for cell in progress:
            progress.set_description(f"{entry.name} {cell['part']}")
            began = time.monotonic()
            result = entry.run(cell)
            seconds = round(time.monotonic() - began, 1)
            date = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
            version = torch.__version__.partition("+")[0]
            record = Record(cell, result, date, seconds, version)
            append(file_of(entry, into), record._asdict())


def write(entry: Entry, into: pathlib.Path, quick: bool) -> pathlib.Path | None:
    """Makes the page and the plot, if all cells have records; returns the page."""
    cells = entry.cells(quick)
    records = records_of(entry, into, cells)
    if len(records) < len(cells):
        return None
    made = into / f"{entry.name}.md"
    made.write_text(page(entry, records, quick), encoding="utf-8")
    (into / f"{entry.name}.svg").write_text(plot(entry, records), encoding="utf-8")
    return made


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tools/reproduce",
        description="Runs what papers claim, an entry for each page of docs/results. A cell that "
        "has a record is not run again: delete its line to repeat it.",
    )
    names = [each.name for each in ENTRIES]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}; all")
    parser.add_argument("--list", action="store_true", help="print each entry's plan")
    parser.add_argument("--quick", action="store_true", help="smaller cells, into build/reproduce")
    parser.add_argument("--pages", action="store_true", help="make pages only, from the records")
    parser.add_argument("--into", type=pathlib.Path, help="folder of pages and records/")
    options = parser.parse_args(arguments)
    for name in options.names:
        if name not in names:
            parser.error(f"no entry '{name}': there are {', '.join(names)}")
    return options


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    chosen = [each for each in ENTRIES if not options.names or each.name in options.names]
    if options.list:
        print("\n\n".join(f"{each.name}\n\n{plan(each)}" for each in chosen))
        return 0
    into = options.into or (QUICK if options.quick else FULL)
    missing = []
    for entry in chosen:
        if not options.pages:
            run(entry, into, options.quick)
        made = write(entry, into, options.quick)
        print(made or f"reproduce: {entry.name} has cells without a record")
        missing += [] if made else [entry.name]
    return 1 if missing else 0
