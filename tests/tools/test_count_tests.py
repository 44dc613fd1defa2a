"""The closing count of tools/test counts cases, and no failure is missed."""

from __future__ import annotations

import json
import pathlib
import sys

import count_tests
import pytest
import rerun_tests
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


@pytest.fixture(autouse=True)
def alone(monkeypatch) -> dict[str, bool]:
    """Which cases pass when they are run alone: none, unless a test says so."""
    passing: dict[str, bool] = {}

    def passes_alone(_, program: str, case: str) -> bool:
        return passing.get(f"{program} {case}".strip(), False)

    monkeypatch.setattr(count_tests, "passes_alone", passes_alone)
    return passing


def counted(folder: pathlib.Path, program: str | None, entry: str, capsys, status="0"):
    """Exit code and lines of a run of one program: its own report, and ctest's entry of it."""
    if program is not None:
        (folder / "prog.xml").write_text(f"<testsuites>{program}</testsuites>")
    report = folder / "ctest.xml"
    report.write_text(f"<testsuite>{entry}</testsuite>")
    code = main(status, str(report), str(folder), "release")
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


@pytest.mark.parametrize(
    ("report", "why"),
    [
        (None, "prog ended without a report of its cases"),
        ("<testcase", "the report of prog cannot be read: "),
        ('<testcase two words="1"/>', "the report of prog cannot be read: "),
    ],
    ids=["none", "cut off", "no XML"],
)
@pytest.mark.parametrize("status", ["run", "fail"])
def test_a_program_without_a_report_is_a_failure(tmp_path, capsys, report, why, status):
    code, lines = counted(tmp_path, report, entry(status, "crashed"), capsys)
    assert code == 1
    assert lines[0] == "test: failed: prog"
    assert any(line.startswith(f"  | {why}") for line in lines)
    assert lines[-1] == "0 passed, 1 failed"


def test_a_disabled_case_is_a_failure(tmp_path, capsys):
    assert counted(tmp_path, PASSED + DISABLED, entry(), capsys)[1][-1] == "1 passed, 1 failed"


def test_a_run_of_no_tests_fails(tmp_path, capsys):
    assert counted(tmp_path, "", entry(), capsys)[0] == 1


def test_a_runner_without_a_report_is_a_failure(tmp_path, capsys):
    assert main("0", str(tmp_path / "pytest.xml"), "", "python") == 1
    assert capsys.readouterr().out.splitlines()[-1] == "0 passed, 1 failed"


def test_pytests_own_report_is_counted_case_by_case(tmp_path, capsys):
    report = tmp_path / "pytest.xml"
    report.write_text(
        '<testsuites><testsuite><testcase classname="a" name="x"/><testcase classname="a" name="y">'
        '<failure>because</failure></testcase><testcase classname="a" name="z"><skipped/>'
        "</testcase></testsuite></testsuites>"
    )
    assert main("1", str(report), "", "python") == 1
    assert capsys.readouterr().out.splitlines() == [
        "test: failed: a y",
        "  | because",
        "test: skipped: a z",
        "test: 1 skipped",
        "1 passed, 1 failed",
    ]


BAD_OUTPUT = "[ RUN      ] Suite.Bad\nwrong: 2\n[  FAILED  ] Suite.Bad"


def test_flaky_case_passes_alone_and_is_printed(tmp_path, capsys, alone):
    alone["prog Suite.Bad"] = True
    code, lines = counted(tmp_path, PASSED + FAILED, entry("fail", BAD_OUTPUT), capsys, "1")
    assert (code, lines) == (
        0,
        ["test: flaky: prog Suite.Bad", "  | wrong: 2", "test: 1 flaky", "2 passed, 0 failed"],
    )


def test_flaky_program_that_died_passes_alone(tmp_path, capsys, alone):
    alone["prog"] = True
    code, lines = counted(tmp_path, None, entry("fail", "crashed"), capsys, "1")
    assert (code, lines[0], lines[-1]) == (0, "test: flaky: prog", "1 passed, 0 failed")


def test_four_failed_cases_are_not_run_again(tmp_path, capsys, alone):
    names = [f"Bad{index}" for index in range(4)]
    alone.update({f"prog Suite.{name}": True for name in names})
    program = "".join(FAILED.replace("Bad", name) for name in names)
    code, lines = counted(tmp_path, program, entry("fail"), capsys, "1")
    assert (code, lines[-1]) == (1, "0 passed, 4 failed")


def test_runner_that_fails_without_a_failed_case_fails(tmp_path, capsys):
    assert counted(tmp_path, PASSED, entry(), capsys, "1")[0] == 1


@pytest.mark.parametrize(("assertion", "passes"), [("assert True", True), ("assert False", False)])
def test_rerun_of_a_pytest_case_says_whether_it_passes(tmp_path, monkeypatch, assertion, passes):
    monkeypatch.chdir(tmp_path)
    body = f"import pytest\n@pytest.mark.parametrize('x', ['a b'])\ndef test_it(x): {assertion}\n"
    (tmp_path / "test_one.py").write_text(body)
    assert rerun_tests.passes_alone(sys.executable, "test_one", "test_it[a b]") == passes


def test_rerun_starts_a_program_as_ctest_does(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prog").write_text('#!/bin/sh\n[ "$1" = --gtest_filter=S.B ] && [ "$A" = "b=c" ]\n')
    (tmp_path / "prog").chmod(0o755)
    preset = {"name": "release", "binaryDir": "${sourceDir}/build", "generator": "Ninja"}
    (tmp_path / "CMakePresets.json").write_text(
        json.dumps(
            {
                "version": 6,
                "configurePresets": [preset],
                "testPresets": [{"name": "release", "configurePreset": "release"}],
            }
        )
    )
    (tmp_path / "build").mkdir()
    variables = "A=b=c;GTEST_OUTPUT=xml:x;GTEST_TOTAL_SHARDS=2;GTEST_SHARD_INDEX=1"
    (tmp_path / "build" / "CTestTestfile.cmake").write_text(
        f'add_test(prog.2 "{tmp_path / "prog"}")\n'
        f'set_tests_properties(prog.2 PROPERTIES ENVIRONMENT "{variables}")\n'
    )
    assert rerun_tests.passes_alone("release", "prog.2", "S.B")
    assert not rerun_tests.passes_alone("release", "prog.2", "S.C")
    assert not rerun_tests.passes_alone("release", "unknown", "S.B")
