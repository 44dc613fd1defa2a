"""Public Python names have docstrings that name every argument."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from helpers.docstrings import PACKAGE, Definition, definition, public_names


def arguments(function: ast.FunctionDef) -> Iterator[str]:
    """Names of the arguments, those without a name of their own left out."""
    given = function.args
    for each in [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]:
        if each is not None and each.arg not in ("self", "cls") and each.arg.strip("_"):
            yield each.arg


def methods(node: Definition) -> list[ast.FunctionDef]:
    return [each for each in node.body if isinstance(each, ast.FunctionDef)]


def unexplained(node: Definition) -> list[str]:
    """Public methods without a docstring, and arguments that the docstring does not name."""
    text = ast.get_docstring(node) or ""
    maker = node
    missing = []
    if isinstance(node, ast.ClassDef):
        for each in methods(node):
            setter = any(ast.unparse(one).endswith(".setter") for one in each.decorator_list)
            if each.name == "__init__":
                maker, text = each, f"{text} {ast.get_docstring(each)}"
            elif not each.name.startswith("_") and not setter and not ast.get_docstring(each):
                missing.append(each.name)
    if not text:
        return [node.name, *missing]
    if isinstance(maker, ast.FunctionDef):
        missing += [name for name in arguments(maker) if not re.search(rf"\b{name}\b", text)]
    return missing


def misnamed(node: Definition) -> list[str]:
    """What stands where a section "Args:" names an argument, and is the name of none."""
    maker = next((each for each in methods(node) if each.name == "__init__"), node)
    names = {*arguments(maker)} if isinstance(maker, ast.FunctionDef) else set()
    found = []
    for each in {node, maker}:
        section = re.search(r"^Args:\n((?: {4}.*\n?|\n)*)", ast.get_docstring(each) or "", re.M)
        entries = re.findall(r"^ {4}(\S[^:\n]*)", section[1] if section else "", re.M)
        said = {entry: entry.split(", ") for entry in entries}
        if "arguments" in names:  # by name, of a TypedDict
            found += [
                entry for entry, words in said.items() if not all(map(str.isidentifier, words))
            ]
        else:
            found += [entry for entry, words in said.items() if not {*words} <= names]
    return found


@pytest.mark.parametrize(("name", "module"), sorted(public_names().items()))
def test_sections_of_arguments_name_arguments_alone(name: str, module: str) -> None:
    source = PACKAGE.parent.joinpath(*module.split(".")).with_suffix(".py")
    assert misnamed(definition(source.read_text(encoding="utf-8"), name)) == []


def test_an_entry_that_is_no_argument_is_found() -> None:
    source = '''
def f(first, k):
    """Do.

    Args:
        first: as it may split it
        differently. k: as many
            as that.

    Returns:
        None: nothing.
    """
'''
    assert misnamed(definition(source, "f")) == ["differently. k"]


@pytest.mark.parametrize(("name", "module"), public_names().items())
def test_docstrings_name_every_argument(name: str, module: str) -> None:
    file = PACKAGE.parent.joinpath(*module.split(".")).with_suffix(".py")
    assert unexplained(definition(file.read_text(encoding="utf-8"), name)) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('def f(a, *, b):\n    """Use a and b."""\n', []),
        ('def f(a, *, b):\n    """Use a."""\n', ["b"]),
        ("def f(a): ...\n", ["f"]),
        ('class f:\n    """With a."""\n    def __init__(self, a): ...\n', []),
        ('class f:\n    """Without."""\n    def __init__(self, a): ...\n', ["a"]),
        ('class f:\n    """Here."""\n    def g(self): ...\n    def _h(self): ...\n', ["g"]),
    ],
)
def test_what_a_docstring_lacks_is_found(source: str, found: list[str]) -> None:
    assert unexplained(definition(source, "f")) == found
