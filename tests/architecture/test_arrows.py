"""The picture of rooms and arrows in docs/architecture.md is true and has no cycle."""

from __future__ import annotations

import ast

import pytest
from arrows import PICTURE, complaints, imported, imports, includes, picture, room_of


def test_every_include_between_rooms_is_in_the_picture_and_none_besides() -> None:
    assert complaints(picture("rooms", PICTURE.read_text()), includes()) == []


def test_every_import_between_modules_is_in_the_picture_and_none_besides() -> None:
    assert complaints(picture("modules", PICTURE.read_text()), imports()) == []


DRAWN = picture("rooms", "```rooms\nlow\nmiddle -> low\nhigh -> middle,\n        low\n```\n")


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


def test_rooms_are_found_by_paths_and_imports_wherever_they_stand() -> None:
    assert room_of("src/transport/ucx/worker.hpp") == "transport/ucx"
    assert room_of("src/gtopk/wire/raw.hpp") == "gtopk"
    assert room_of("gtopk/error.hpp") == room_of("include/gtopk/error.hpp") == "include"
    assert room_of("gtopk_version.hpp") is None
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
