"""The C++ reference has every public header and name."""

from __future__ import annotations

import pathlib
import re
import shutil

import pytest
import site_cpp

from helpers.paths import ROOT

HEADERS = sorted(path.name for path in (ROOT / site_cpp.HEADERS).iterdir())
PAGE = (ROOT / "docs" / "reference" / "cpp.md").read_text(encoding="utf-8")
needs_doxygen = pytest.mark.skipif(shutil.which("doxygen") is None, reason="doxygen is missing")
DOCUMENTED = "/// @file\n/// A header.\n#pragma once\n/// The library.\nnamespace gtopk {\n"


def listed(page: str) -> dict[str, list[str]]:
    """The names that the page lists for each header."""
    rows = re.findall(r"(?m)^\| \[(\w+\.hpp)\]\(\S+/(\S+)\) \| ([^|:]+)", page)
    assert all(name == target for name, target, _ in rows)
    return {name: re.findall(r"`(\w+)`", names) for name, _, names in rows}


def test_the_page_lists_every_header_once() -> None:
    assert sorted(listed(PAGE)) == HEADERS
    assert len(re.findall(r"(?m)^\| \[", PAGE)) == len(HEADERS)


def test_the_page_lists_names_of_the_header() -> None:
    for header, names in listed(PAGE).items():
        source = (ROOT / site_cpp.HEADERS / header).read_text(encoding="utf-8")
        assert names != []
        assert {*names} - {*re.findall(r"\w+", re.sub("//.*", "", source))} == set(), header


@needs_doxygen
def test_every_public_name_of_the_headers_has_a_comment() -> None:
    names = {name for name, _ in site_cpp.pages()}
    assert {site_cpp.page_of(header) for header in HEADERS} - names == set()


@needs_doxygen
@pytest.mark.parametrize(
    ("declared", "fault"),
    [
        ("void undocumented();", "undocumented() (function) of namespace gtopk is not documented"),
        ("struct Bare {\n  int x;\n};", "Compound gtopk::Bare is not documented"),
        ("/// A type.\nstruct Half {\n  int bare;\n};", "bare (variable) of struct gtopk::Half"),
        ("/// As @ref nowhere says.\nvoid astray();", "unable to resolve reference to 'nowhere'"),
    ],
)
def test_a_fault_of_a_header_is_found(declared: str, fault: str, tmp_path: pathlib.Path) -> None:
    headers = tmp_path / "include" / "gtopk"
    headers.mkdir(parents=True)
    header = headers / "header.hpp"
    header.write_text(f"{DOCUMENTED}/// Does it.\nvoid documented();\n}}\n")
    site_cpp.doxygen(headers, tmp_path / "sound")
    header.write_text(f"{DOCUMENTED}{declared}\n}}\n")
    with pytest.raises(ValueError, match=re.escape(fault)):
        site_cpp.doxygen(headers, tmp_path / "faulty")


def test_pages_that_headers_name_are_linked() -> None:
    text = "see docs/results/a.md and (docs/b.md)"
    assert site_cpp.with_pages(text, {"results/a.md", "b.md"}.__contains__) == (
        'see <a href="../../results/a.html">docs/results/a.md</a> and '
        '(<a href="../../b.html">docs/b.md</a>)'
    )
    with pytest.raises(ValueError, match=r"docs/b\.md, which does not exist"):
        site_cpp.with_pages(text, {"results/a.md"}.__contains__)


def test_headers_have_the_pages_that_doxygen_makes() -> None:
    assert site_cpp.page_of("include/gtopk/device_acc.hpp") == "reference/cpp/device__acc_8hpp.html"
