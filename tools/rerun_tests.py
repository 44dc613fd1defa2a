"""Runs one failed case again, alone, for tools/test.

A case of a C++ program is run by that program, as ctest would start it; a program that died is run
whole. A case of pytest is run by pytest.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

LONGEST = 900  # seconds


def passes_alone(runner: str, program: str, case: str) -> bool:
    """Return whether the case passes now.

    RUNNER is a CMake preset, or a Python that has pytest. PROGRAM is ctest's name of the program,
    or pytest's of the module. CASE is the name in the report, or "" for the whole program.
    """
    if pathlib.Path(runner).name.startswith("python"):
        module = program.replace(".", "/") + ".py"
        words, variables = [runner, "-m", "pytest", "-q", f"{module}::{case}"], {}
        if not case:
            return False
    else:
        words, variables = started_by_ctest(runner, program)
        if not words:
            return False
        if case:
            words.append(f"--gtest_filter={case}")
    print(f"test: once more, alone: {program} {case}", flush=True)
    try:
        done = subprocess.run(
            words,
            env=os.environ | variables,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            timeout=LONGEST,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def started_by_ctest(preset: str, name: str) -> tuple[list[str], dict[str, str]]:
    """Return the program's command and environment, without its report and share of cases."""
    listed = subprocess.run(
        ["ctest", "--preset", preset, "--show-only=json-v1"], capture_output=True, check=True
    )
    for test in json.loads(listed.stdout)["tests"]:
        if test["name"] == name:
            properties = {entry["name"]: entry["value"] for entry in test["properties"]}
            variables = dict(line.split("=", 1) for line in properties.get("ENVIRONMENT", []))
            for ours in ("GTEST_OUTPUT", "GTEST_TOTAL_SHARDS", "GTEST_SHARD_INDEX"):
                variables.pop(ours, None)
            return list(test["command"]), variables
    return [], {}
