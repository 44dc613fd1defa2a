"""Room: tools. The end of tools/test: counts cases from the runners' reports, lists failures.

    count_tests.py STATUS [REPORT PROGRAMS]…

STATUS is 0 unless a runner failed. REPORT is the JUnit report of ctest or pytest; PROGRAMS is the
folder where the programs run by ctest have reported their own cases, or empty. A runner or program
that died without a report counts as a failure, and so does a run without any test.
"""

from __future__ import annotations

import pathlib
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass

LINES_TOLD = 30


@dataclass
class Case:
    name: str
    result: str  # passed, failed or skipped
    said: str = ""


def parts(case: ElementTree.Element) -> str:
    """What a failed case printed and why it failed."""
    found = (case.find(kind) for kind in ("system-out", "failure", "error"))
    return "\n".join(part.text or "" for part in found if part is not None)


def reported(case: ElementTree.Element) -> str:
    """A test case's result, in the report of any of the three."""
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    if case.get("result") == "skipped" or case.find("skipped") is not None:
        return "failed" if case.get("status") == "notrun" else "skipped"
    # For a case that passed, a program says "run", ctest says "run" and pytest says nothing.
    return "passed" if case.get("status", "run") == "run" else "failed"


def printed(output: str, case: str) -> str:
    """What a program printed while it ran this case."""
    _, _, after = output.partition(f"[ RUN      ] {case}\n")
    return after.partition("[  FAILED  ] ")[0]


def cases_of_program(entry: ElementTree.Element, folder: pathlib.Path) -> Iterator[Case]:
    """The cases of one program; one more for the program itself if it failed and no case did."""
    program, output = entry.get("name", ""), parts(entry)
    try:
        cases = list(ElementTree.parse(folder / f"{program}.xml").iter("testcase"))
    except (OSError, ElementTree.ParseError):
        yield Case(program, "failed", f"{output}\n{program} ended without a report of its cases")
        return
    failed = 0
    for case in cases:
        name, result = f"{case.get('classname')}.{case.get('name')}", reported(case)
        failed += result == "failed"
        yield Case(f"{program} {name}", result, printed(output, name) or parts(case))
    if reported(entry) == "failed" and not failed:
        yield Case(program, "failed", output)


def cases_of(report: pathlib.Path, folder: str) -> Iterator[Case]:
    try:
        entries = list(ElementTree.parse(report).iter("testcase"))
    except (OSError, ElementTree.ParseError) as error:
        yield Case(report.stem, "failed", f"no report: {error}")
        return
    for entry in entries:
        if folder:
            yield from cases_of_program(entry, pathlib.Path(folder))
        else:
            name = f"{entry.get('classname', '')} {entry.get('name', '')}"
            yield Case(name, reported(entry), parts(entry))


def main(status: str, *runs: str) -> int:
    """Prints failed and skipped cases, and closes with "N passed, N failed"."""
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for report, folder in zip(runs[::2], runs[1::2], strict=True):
        for case in cases_of(pathlib.Path(report), folder):
            counts[case.result] += 1
            if case.result != "passed":
                print(f"test: {case.result}: {case.name}")
            if case.result == "failed":
                for line in case.said.strip().splitlines()[-LINES_TOLD:]:
                    print(f"  | {line}")
    if counts["skipped"]:
        print(f"test: {counts['skipped']} skipped")
    if counts["passed"] + counts["failed"] == 0:
        print("test: no test ran")
    print(f"{counts['passed']} passed, {counts['failed']} failed")
    return int(counts["failed"] > 0 or counts["passed"] == 0 or status != "0")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
