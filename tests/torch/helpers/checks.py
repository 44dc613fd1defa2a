"""Which functions of a test module are checks that run on ranks.

A module's check_* functions run on the ranks of a RankSet. Those that another function of the
module names, to pass them arguments or ranks of their own, are left to that function. All others
are found here and run by the module's test that takes `check`: there is no list, so none can be
forgotten.
"""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

PREFIX = "check_"


def unnamed_checks(source: str) -> list[ast.FunctionDef]:
    """The check_* functions that no function of this source names, in order."""
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    named = {
        name.id
        for function in functions
        for name in ast.walk(function)
        if isinstance(name, ast.Name) and name.id != function.name
    }
    return [f for f in functions if f.name.startswith(PREFIX) and f.name not in named]


def checks_of(module: ModuleType) -> list[Callable[..., Any]]:
    """The same, as functions."""
    source = pathlib.Path(module.__file__).read_text(encoding="utf-8")
    return [getattr(module, function.name) for function in unnamed_checks(source)]


def forgotten(source: str) -> list[str]:
    """Names of checks that nothing runs: no test takes them, or they need arguments."""
    checks = unnamed_checks(source)
    tests = [
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    if not any("check" in (each.arg for each in test.args.args) for test in tests):
        return [check.name for check in checks]
    return [check.name for check in checks if len(check.args.args) != 1]
