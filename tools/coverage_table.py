"""Prints the table of tools/coverage: lines and branches that ran, by folder.

    coverage_table.py CPP [PYTHON]

CPP is gcovr's summary in JSON, PYTHON is coverage's report in JSON. A folder's share covers all its
lines or branches; it is not the mean of its files.
"""

from __future__ import annotations

import json
import pathlib
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass
class Counts:
    lines: int = 0
    lines_run: int = 0
    branches: int = 0
    branches_run: int = 0

    def __iadd__(self, other: Counts) -> Counts:
        self.lines += other.lines
        self.lines_run += other.lines_run
        self.branches += other.branches
        self.branches_run += other.branches_run
        return self


def cpp_files(report: dict) -> Iterator[tuple[str, Counts]]:
    """Yield each file's folder below src, or "include", and its counts."""
    for file in report["files"]:
        folder = pathlib.PurePath(file["filename"]).parent
        below_src = folder.parts[0] == "src"
        yield (
            folder.relative_to("src").as_posix() if below_src else folder.parts[0],
            Counts(
                file["line_total"],
                file["line_covered"],
                file["branch_total"],
                file["branch_covered"],
            ),
        )


def python_files(report: dict) -> Iterator[tuple[str, Counts]]:
    """Yield each file's folder in the package gtopk, and its counts."""
    for name, file in report["files"].items():
        parts = pathlib.PurePath(name).parts
        package = len(parts) - 1 - parts[::-1].index("gtopk")
        found = file["summary"]
        yield (
            "/".join(parts[package:-1]),
            Counts(
                found["num_statements"],
                found["covered_lines"],
                found.get("num_branches", 0),
                found.get("covered_branches", 0),
            ),
        )


def by_folder(files: Iterator[tuple[str, Counts]]) -> dict[str, Counts]:
    """Return the sum of each folder, by name, and of all."""
    folders: defaultdict[str, Counts] = defaultdict(Counts)
    total = Counts()
    for folder, counts in files:
        folders[folder] += counts
        total += counts
    return {**dict(sorted(folders.items())), "all": total}


def share(part: int, whole: int) -> str:
    """Return the share in percent, rounded down so that 100 means all."""
    return f"{1000 * part // whole / 10:.1f}" if whole else "-"


def table(title: str, folders: dict[str, Counts]) -> Iterator[str]:
    yield f"| {title} | lines | run, % | branches | taken, % |"
    yield "| --- | --- | --- | --- | --- |"
    for folder, of in folders.items():
        name = folder if folder == "all" else f"`{folder}`"
        lines, branches = share(of.lines_run, of.lines), share(of.branches_run, of.branches)
        yield f"| {name} | {of.lines:,} | {lines} | {of.branches:,} | {branches} |"


def main(cpp: str, python: str | None = None) -> None:
    """Print the table of gcovr's summary, and of coverage.py's report if there is one."""
    print("\n".join(table("C++ module", by_folder(cpp_files(_read(cpp))))))
    if python is not None:
        print("\n" + "\n".join(table("Python package", by_folder(python_files(_read(python))))))


def _read(path: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
