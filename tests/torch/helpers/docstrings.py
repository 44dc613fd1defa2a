"""The public names of the package, and where each is defined."""

from __future__ import annotations

import ast

from helpers.paths import ROOT

PACKAGE = ROOT / "src" / "torch_backend" / "gtopk"
Definition = ast.FunctionDef | ast.ClassDef


def public_names() -> dict[str, str]:
    """The module of each public name, as gtopk/__init__.py has it."""
    for node in ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_PLACES":
            return ast.literal_eval(node.value)
    raise AssertionError("gtopk/__init__.py has no _PLACES")


def definition(source: str, name: str) -> Definition:
    """The function or class of that name."""
    nodes = [each for each in ast.parse(source).body if isinstance(each, Definition)]
    return next(each for each in nodes if each.name == name)
