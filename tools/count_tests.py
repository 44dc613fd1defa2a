"""The end of tools/test: counts cases in the runners' reports and lists failures.

    count_tests.py STATUS [REPORT PROGRAMS RUNNER]…

STATUS is 0 unless a runner failed. REPORT is the JUnit report of ctest or pytest; PROGRAMS is the
folder where the programs run by ctest have reported their own cases, or empty; RUNNER runs a case
once more: it is the CMake preset or the Python. A runner or program that died without a report
counts as a failure, and so does a run without any test.

If at most three cases failed, each is run once more, alone. One that passes then is printed as
flaky, with its first failure, and counts as passed.
"""

from __future__ import annotations

import collections
import pathlib
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass

from rerun_tests import passes_alone

LINES_SHOWN = 30
MOST_FLAKY = 3


@dataclass
class Case:
    program: str  # program or module
    name: str  # "" means the program itself
    result: str  # passed, failed, skipped or flaky
    output: str = ""
    runner: str = ""

    def __str__(self) -> str:
        return f"{self.program} {self.name}".strip()


def parts(case: ElementTree.Element) -> str:
    """Return what a failed case printed and why it failed."""
    found = (case.find(kind) for kind in ("system-out", "failure", "error"))
    return "\n".join(part.text or "" for part in found if part is not None)


def reported(case: ElementTree.Element) -> str:
    """Return a test case's result from the report of any of the three runners."""
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    if case.get("result") == "skipped" or case.find("skipped") is not None:
        return "failed" if case.get("status") == "notrun" else "skipped"
    # For a case that passed, a program says "run", ctest says "run" and pytest says nothing.
    return "passed" if case.get("status", "run") == "run" else "failed"


def printed(output: str, case: str) -> str:
    """Return what a program printed while it ran this case."""
    _, _, after = output.partition(f"[ RUN      ] {case}\n")
    return after.partition("[  FAILED  ] ")[0]


def cases_of_program(entry: ElementTree.Element, folder: pathlib.Path) -> Iterator[Case]:
    """Yield the cases of one program, and the program itself if it failed and no case did."""
    program, output = entry.get("name", ""), parts(entry)
    try:
        cases = list(ElementTree.parse(folder / f"{program}.xml").iter("testcase"))
    except OSError:
        reason = f"{output}\n{program} ended without a report of its cases"
        yield Case(program, "", "failed", reason)
        return
    except ElementTree.ParseError as error:
        reason = f"{output}\nthe report of {program} cannot be read: {error}"
        yield Case(program, "", "failed", reason)
        return
    failed = 0
    for case in cases:
        name, result = f"{case.get('classname')}.{case.get('name')}", reported(case)
        failed += result == "failed"
        yield Case(program, name, result, printed(output, name) or parts(case))
    if reported(entry) == "failed" and not failed:
        yield Case(program, "", "failed", output)


def cases_of(report: pathlib.Path, folder: str) -> Iterator[Case]:
    try:
        entries = list(ElementTree.parse(report).iter("testcase"))
    except (OSError, ElementTree.ParseError) as error:
        yield Case(report.stem, "", "failed", f"no report: {error}")
        return
    for entry in entries:
        if folder:
            yield from cases_of_program(entry, pathlib.Path(folder))
        else:
            program, name = entry.get("classname", ""), entry.get("name", "")
            yield Case(program, name, reported(entry), parts(entry))


def main(status: str, *runs: str) -> int:
    """Prints failed, flaky and skipped cases, and closes with "N passed, N failed"."""
    cases: list[Case] = []
    for report, folder, runner in zip(runs[::3], runs[1::3], runs[2::3], strict=True):
        for case in cases_of(pathlib.Path(report), folder):
            case.runner = runner
            cases.append(case)
    failed = [case for case in cases if case.result == "failed"]
    if len(failed) <= MOST_FLAKY:
        for case in failed:
            if passes_alone(case.runner, case.program, case.name):
                case.result = "flaky"
    for case in cases:
        if case.result != "passed":
            print(f"test: {case.result}: {case}")
        if case.result in ("failed", "flaky"):
            for line in case.output.strip().splitlines()[-LINES_SHOWN:]:
                print(f"  | {line}")
    counts = collections.Counter(case.result for case in cases)
    for result in ("skipped", "flaky"):
        if counts[result]:
            print(f"test: {counts[result]} {result}")
    passed = counts["passed"] + counts["flaky"]
    if passed + counts["failed"] == 0:
        print("test: no test ran")
    print(f"{passed} passed, {counts['failed']} failed")
    unexplained = status != "0" and not failed
    return int(counts["failed"] > 0 or passed == 0 or unexplained)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
