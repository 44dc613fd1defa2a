"""The arrows of docs/architecture.md and docs/python.md, and the drawings, are true."""

from __future__ import annotations

import ast
import re

import pytest

from helpers.arrows import (
    MAP,
    PYTHON,
    ROOT,
    blocks,
    complaints,
    floors,
    imported,
    imports,
    includes,
    module_of,
    picture,
    sources,
)

DRAWINGS = blocks("drawing", MAP.read_text())


def test_cpp_picture_has_exactly_the_includes_between_modules() -> None:
    assert complaints(picture("cpp-modules", MAP.read_text()), includes()) == []


def test_python_picture_has_exactly_the_imports_between_modules() -> None:
    assert complaints(picture("python-modules", PYTHON.read_text()), imports()) == []


def test_package_picture_has_exactly_the_sub_package_imports() -> None:
    real: dict[str, set[str]] = {}
    for module, needed in imports().items():
        if module != "__init__":
            package = module.split("/")[0]
            needs = {each.split("/")[0] for each in needed} - {package}
            real.setdefault(package, set()).update(needs)
    assert complaints(picture("python-packages", MAP.read_text()), real) == []


def test_arrows_lead_downwards_in_the_drawing_of_modules() -> None:
    line = floors(DRAWINGS[0])
    arrows = {name: needed for name, needed in includes().items() if not name.startswith("tests/")}
    assert line.keys() == arrows.keys()
    upwards = [
        (name, each)
        for name, needed in arrows.items()
        for each in needed
        if line[each] <= line[name]
    ]
    assert upwards == []


def test_the_files_in_the_drawing_of_a_gradient_exist() -> None:
    named = re.findall(r"[\w/]+\.(?:cpp|hpp|py)", DRAWINGS[1])
    assert len(named) > 5
    files = [path.as_posix() for path in (ROOT / "src").rglob("*")]
    assert [each for each in named if not any(path.endswith(f"/{each}") for path in files)] == []


def started_threads() -> set[str]:
    """The names that the sources give to threads."""
    starts = re.compile(r'(?:start_thread|setname_np|ComputeThread)\b[^"\n]*"(gtopk-[a-z]+)"')
    return {name for file in sources(ROOT / "src") for name in starts.findall(file.read_text())}


def test_drawn_and_listed_threads_are_those_the_sources_start() -> None:
    assert set(re.findall(r"gtopk-[a-z]+", DRAWINGS[2])) == started_threads()
    rows = re.findall(r"^\| `(gtopk-[a-z]+)`", MAP.read_text(), re.MULTILINE)
    assert set(rows) == started_threads()


def test_boxes_of_a_drawing_are_found_with_their_lines() -> None:
    assert floors("+--+\n| a/b: x | c: y |\n+--+\n|    | d: z |\n") == {"a/b": 1, "c": 1, "d": 3}
    with pytest.raises(ValueError, match="twice"):
        floors("| a: x | a: y |")


DRAWN = picture("modules", "```modules\nlow\nmiddle -> low\nhigh -> middle,\n        low\n```\n")


def test_a_true_picture_has_no_complaints() -> None:
    assert complaints(DRAWN, {"low": set(), "middle": {"low"}, "high": {"low", "middle"}}) == []


@pytest.mark.parametrize(
    ("real", "complaint"),
    [
        (
            {"low": set(), "middle": {"low"}, "high": {"middle"}},
            "high -> low is in the picture only",
        ),
        (
            {"low": {"high"}, "middle": {"low"}, "high": {"low", "middle"}},
            "low -> high is not in the picture",
        ),
        (
            {"low": set(), "middle": {"low"}, "high": {"low", "middle"}, "new": set()},
            "new is not in the picture",
        ),
        ({"low": set(), "middle": {"low"}}, "high is in the picture only"),
    ],
)
def test_a_picture_that_differs_from_the_sources_is_told(
    real: dict[str, set[str]], complaint: str
) -> None:
    assert complaint in complaints(DRAWN, real)


def test_a_cycle_is_told_even_where_the_picture_has_it() -> None:
    round_and_round = {"low": {"high"}, "high": {"low"}}
    assert complaints(round_and_round, round_and_round) == ["low -> high, which stands no higher"]
    back = frozenset({("low", "high")})
    assert complaints(round_and_round, round_and_round, back) == []
    mended = {"low": set(), "high": {"low"}}
    assert complaints(mended, mended, back) == ["low -> high is no exception any more"]


def test_modules_are_found_from_include_paths_and_any_import() -> None:
    assert module_of("src/transport/ucx/worker.hpp") == "transport/ucx"
    assert module_of("src/gtopk/wire/raw.hpp") == "gtopk"
    assert module_of("gtopk/error.hpp") == module_of("include/gtopk/error.hpp") == "include"
    assert module_of("gtopk_version.hpp") is None
    source = """
import gtopk.training.ddp
if TYPE_CHECKING:
    from gtopk.state.units import Unit
def late():
    from gtopk.core import _native, groups
    from torch import nn
"""
    expected = {"training/ddp", "state/units", "core/_native", "core/groups"}
    assert imported(ast.parse(source), expected | {"nn", "core/launch"}) == expected


def test_sub_packages_stand_on_one_another_without_a_circle() -> None:
    floors = ["core", "ops", "state", "diagnostics", "exchange", "training", "__init__"]
    for module, needed in imports().items():
        floor = floors.index(module.split("/")[0])
        higher = [each for each in needed if floors.index(each.split("/")[0]) > floor]
        assert higher == [], f"{module} needs what stands higher"
