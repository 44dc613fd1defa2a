"""Room: tests/torch. The closing count of tools/test counts cases, and no failure is missed."""

from __future__ import annotations

import pathlib

import pytest
from count_tests import main

PASSED = '<testcase classname="Suite" name="Good" status="run" result="completed"/>'
FAILED = (
    '<testcase classname="Suite" name="Bad" status="run" result="completed">'
    "<failure>expected 1</failure></testcase>"
)
SKIPPED = (
    '<testcase classname="Suite" name="Left" status="run" result="skipped"><skipped/></testcase>'
)
DISABLED = '<testcase classname="Suite" name="Off" status="notrun" result="suppressed"/>'


def counted(folder: pathlib.Path, program: str | None, entry: str, capsys, status="0"):
    """Exit code and lines of a run of one program: its own report, and ctest's entry of it."""
    if program is not None:
        (folder / "prog.xml").write_text(f"<testsuites>{program}</testsuites>")
    report = folder / "ctest.xml"
    report.write_text(f"<testsuite>{entry}</testsuite>")
    code = main(status, str(report), str(folder))
    return code, capsys.readouterr().out.splitlines()


def entry(status: str = "run", output: str = "") -> str:
    failure = "" if status == "run" else "<failure/>"
    return (
        f'<testcase name="prog" status="{status}">{failure}'
        f"<system-out>{output}</system-out></testcase>"
    )


def test_the_cases_of_a_program_are_counted_not_the_program(tmp_path, capsys):
    code, lines = counted(tmp_path, PASSED * 3 + SKIPPED, entry(), capsys)
    assert (code, lines) == (
        0,
        ["test: skipped: prog Suite.Left", "test: 1 skipped", "3 passed, 0 failed"],
    )


def test_a_failed_case_is_told_with_what_it_printed(tmp_path, capsys):
    output = "[ RUN      ] Suite.Bad\nwrong: 2\n[  FAILED  ] Suite.Bad\n[ RUN      ] Suite.Good\nx"
    code, lines = counted(tmp_path, PASSED + FAILED, entry("fail", output), capsys, "1")
    assert (code, lines) == (
        1,
        ["test: failed: prog Suite.Bad", "  | wrong: 2", "1 passed, 1 failed"],
    )


def test_a_program_that_fails_after_its_last_case_is_a_failure(tmp_path, capsys):
    code, lines = counted(tmp_path, PASSED, entry("fail", "a leak"), capsys, "1")
    assert (code, lines) == (1, ["test: failed: prog", "  | a leak", "1 passed, 1 failed"])


@pytest.mark.parametrize("report", [None, "<testcase"], ids=["none", "cut off"])
@pytest.mark.parametrize("status", ["run", "fail"])
def test_a_program_without_a_report_is_a_failure(tmp_path, capsys, report, status):
    code, lines = counted(tmp_path, report, entry(status, "crashed"), capsys)
    assert code == 1
    assert lines[0] == "test: failed: prog"
    assert lines[-1] == "0 passed, 1 failed"


def test_a_disabled_case_is_a_failure(tmp_path, capsys):
    assert counted(tmp_path, PASSED + DISABLED, entry(), capsys)[1][-1] == "1 passed, 1 failed"


def test_a_run_of_no_tests_fails(tmp_path, capsys):
    assert counted(tmp_path, "", entry(), capsys)[0] == 1


def test_a_runner_without_a_report_is_a_failure(tmp_path, capsys):
    assert main("0", str(tmp_path / "pytest.xml"), "") == 1
    assert capsys.readouterr().out.splitlines()[-1] == "0 passed, 1 failed"


def test_pytests_own_report_is_counted_case_by_case(tmp_path, capsys):
    report = tmp_path / "pytest.xml"
    report.write_text(
        '<testsuites><testsuite><testcase classname="a" name="x"/><testcase classname="a" name="y">'
        '<failure>because</failure></testcase><testcase classname="a" name="z"><skipped/>'
        "</testcase></testsuite></testsuites>"
    )
    assert main("1", str(report), "") == 1
    assert capsys.readouterr().out.splitlines() == [
        "test: failed: a y",
        "  | because",
        "test: skipped: a z",
        "test: 1 skipped",
        "1 passed, 1 failed",
    ]
