"""Which module needs which: in the sources and on the pages."""

from __future__ import annotations

import ast
import pathlib
import re
from collections.abc import Set

from helpers.paths import ROOT

Arrows = dict[str, set[str]]  # from each module to those that it needs

MAP = ROOT / "docs" / "architecture.md"
PYTHON = ROOT / "docs" / "python.md"
PACKAGE = ROOT / "src" / "torch_backend" / "gtopk"


def blocks(name: str, page: str) -> list[str]:
    """The fenced blocks ``name`` of a page."""
    return re.findall(rf"^```{name}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def picture(name: str, page: str) -> Arrows:
    """The fenced block ``name``: "module -> module, module", or "module" if it needs none.

    A line that begins with a space continues the one before.
    """
    found = blocks(name, page)
    if len(found) != 1:
        raise ValueError(f"the page has {len(found)} blocks ```{name}, not one")
    arrows: Arrows = {}
    for line in re.sub(r"\n +", " ", found[0]).splitlines():
        module, _, needed = (part.strip() for part in line.partition("->"))
        if module in arrows:
            raise ValueError(f"{module} has two lines in the block {name}")
        arrows[module] = {each.strip() for each in needed.split(",") if each.strip()}
    return arrows


def floors(drawing: str) -> dict[str, int]:
    """The modules of a drawing of boxes ("| module: what it does |"), with the line of each."""
    found: dict[str, int] = {}
    for number, line in enumerate(drawing.splitlines()):
        for name in re.findall(r"\| ([\w/]+): ", line):
            if name in found:
                raise ValueError(f"{name} is in the drawing twice")
            found[name] = number
    return found


def module_of(path: str) -> str | None:
    """The module of a C++ file, by its path from the root or as an #include names it."""
    if path.startswith(("include/gtopk/", "gtopk/")):
        return "include"
    if path.startswith("tests/reference/"):
        return "tests/reference"
    found = re.match(r"src/(transport/\w+|\w+)/", path)
    return found and found[1]


def sources(folder: pathlib.Path) -> list[pathlib.Path]:
    return [file for name in ("*.[ch]pp", "*.cu", "*.cuh") for file in folder.rglob(name)]


def includes() -> Arrows:
    """The arrows between the modules of the C++ sources."""
    arrows: Arrows = {}
    for folder in ("include", "src", "tests/reference"):
        for file in sources(ROOT / folder):
            if file.stem.endswith("_test"):
                continue
            module = module_of(file.relative_to(ROOT).as_posix())
            if module is None:
                raise ValueError(f"{file} is in no module")
            needed = re.findall(r'^\s*#\s*include "([^"]+)"', file.read_text(), re.MULTILINE)
            # Generated files (the version) are in no module.
            modules = {module_of(each) for each in needed} - {None, module}
            arrows.setdefault(module, set()).update(str(each) for each in modules)
    return arrows


def imported(tree: ast.AST, modules: Set[str]) -> set[str]:
    """Which modules of the package a module imports, including those needed only for types."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        inside = [name.removeprefix("gtopk.") for name in names if name.startswith("gtopk.")]
        found.update(name.replace(".", "/") for name in inside)
    return found & modules


def imports() -> Arrows:
    """The arrows between the modules of the Python package."""
    files = {
        file.relative_to(PACKAGE).with_suffix("").as_posix(): file
        for file in PACKAGE.rglob("*.py*")
        if file.suffix in (".py", ".pyi") and (file.name != "__init__.py" or file.parent == PACKAGE)
    }
    return {
        module: imported(ast.parse(file.read_text()), files.keys() - {module})
        for module, file in files.items()
    }


def complaints(
    drawn: Arrows, real: Arrows, back: frozenset[tuple[str, str]] = frozenset()
) -> list[str]:
    """What is wrong with a picture. Each module stands below those it needs but ``back``."""
    found = [f"{module} is not in the picture" for module in sorted(real.keys() - drawn.keys())]
    found += [f"{module} is in the picture only" for module in sorted(drawn.keys() - real.keys())]
    above: set[str] = set()
    for module, needed in drawn.items():
        needs = real.get(module, set())
        found += [f"{module} -> {each} is not in the picture" for each in sorted(needs - needed)]
        found += [f"{module} -> {each} is in the picture only" for each in sorted(needed - needs)]
        upwards = {each for each in needed - above if (module, each) not in back}
        found += [f"{module} -> {each}, which stands no higher" for each in sorted(upwards)]
        above.add(module)
    found += [
        f"{module} -> {each} is no exception any more"
        for module, each in sorted(back)
        if each not in drawn.get(module, set())
    ]
    return found
