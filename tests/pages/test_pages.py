"""Links, anchors, named files and widths of all Markdown files."""

from __future__ import annotations

import pathlib
import re

import pytest

from helpers.pages import prose
from helpers.paths import ROOT

PAGES = sorted(
    [*ROOT.glob("*.md")]
    + [
        page
        for folder in (".github", "cmake", "docs", "examples", "src", "tests", "tools")
        for page in (ROOT / folder).rglob("*.md")
    ]
)
WIDTH = 100
FOLDERS = ("cmake", "docs", "examples", "include", "requirements", "src", "tests", "tools")
FOREIGN = ("c10d/",)  # torch's headers


def anchors(page: str) -> set[str]:
    """As GitHub makes them from headings: lower case, words and hyphens, a number for repeats."""
    found: set[str] = set()
    for heading in re.findall(r"(?m)^#+ (.+)$", prose(page)):
        plain = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        others = sum(
            re.fullmatch(re.escape(plain) + r"(-\d+)?", each) is not None for each in found
        )
        found.add(f"{plain}-{others}" if others else plain)
    return found


def links(page: str) -> list[str]:
    """Where the links of a page lead, other pages of the web left out."""
    text = re.sub(r"`[^`]*`", "", prose(page))
    inline = re.findall(r"\]\(([^)\s]+)\)", text)
    defined = re.findall(r"(?m)^\[[^\]]+\]: (\S+)$", text)
    return [each for each in inline + defined if not re.match(r"[a-z]+://", each)]


# Links of these lead from the pages that are made of them.
TEMPLATES = ROOT / "tools" / "reproduce_entries" / "pages"


def dead(page: pathlib.Path) -> list[str]:
    wrong = []
    folder = ROOT / "docs" / "results" if page.parent == TEMPLATES else page.parent
    for link in links(page.read_text(encoding="utf-8")):
        place, _, anchor = link.partition("#")
        target = (folder / place) if place else page
        there = target.exists()
        if there and anchor:
            there = anchor in anchors(target.read_text(encoding="utf-8"))
        if not there:
            wrong.append(link)
    return wrong


def reachable(start: pathlib.Path) -> set[pathlib.Path]:
    """The pages that a reader finds from one by following links."""
    found, waiting = {start.resolve()}, [start.resolve()]
    while waiting:
        page = waiting.pop()
        for link in links(page.read_text(encoding="utf-8")):
            target = (page.parent / link.partition("#")[0]).resolve()
            if target.suffix == ".md" and target.is_file() and target not in found:
                found.add(target)
                waiting.append(target)
    return found


def undefined(page: str) -> set[str]:
    """Labels of links like [text][label] that the page does not define."""
    text = re.sub(r"`[^`]*`", "", prose(page))
    defined = set(re.findall(r"(?m)^\[([^\]]+)\]: ", text))
    return set(re.findall(r"\]\[([^\]]+)\]", text)) - defined


def named_files(page: str) -> set[str]:
    """Sources named with a folder, such as `engine/probes.hpp`."""
    found = set(re.findall(r"`([\w./-]+/[\w.-]+\.(?:hpp|cpp|py|toml))`", prose(page)))
    return {each for each in found if not each.startswith(FOREIGN)}


def test_every_kind_of_page_is_checked() -> None:
    names = {page.name for page in PAGES}
    assert {"README.md", "CHANGELOG.md", "bug.md", "algorithms.md", "adamw.md"} <= names


@pytest.mark.parametrize(
    ("page", "most"),
    [("README.md", 150), ("docs/architecture.md", 250), ("docs/performance.md", 150)],
)
def test_pages_that_are_read_at_once_stay_short(page: str, most: int) -> None:
    assert len((ROOT / page).read_text(encoding="utf-8").splitlines()) <= most


def test_the_version_is_the_same_everywhere() -> None:
    build = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    (version,) = re.findall(r"^project\(gtopk VERSION (\S+)", build, re.MULTILINE)
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## {re.escape(version)} - \d{{4}}-\d\d-\d\d$", changes, re.MULTILINE)
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {version}\n" in citation


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: pathlib.Path) -> None:
    assert dead(page) == []
    assert undefined(page.read_text(encoding="utf-8")) == set()


def test_every_page_of_docs_is_found_from_the_readme() -> None:
    pages = {page.resolve() for page in (ROOT / "docs").rglob("*.md")}
    assert pages - reachable(ROOT / "README.md") == set()


def test_the_sources_that_pages_name_exist() -> None:
    files = [
        path.as_posix()
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.is_file()
    ]
    for page in PAGES:
        for name in sorted(named_files(page.read_text(encoding="utf-8"))):
            assert any(path.endswith(f"/{name}") for path in files), f"{page.name}: {name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_outside_tables_fit(page: pathlib.Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if len(line) > WIDTH and not line.startswith("|")] == []


def test_dead_links_are_found(tmp_path: pathlib.Path) -> None:
    page = tmp_path / "page.md"
    (tmp_path / "other.md").write_text("# One's own, and `more`\n")
    page.write_text(
        "## Here\n## Here\n[a](other.md#ones-own-and-more) [b](#here-1) [c](https://far.example/x)\n"
        "[d](other.md#nowhere) [e](gone.md) `[f](code.md)` [g][far] [h][near]\n"
        "```\n[i](block.md)\n```\n\n[near]: other.md\n[lost]: lost.md\n"
    )
    assert dead(page) == ["other.md#nowhere", "gone.md", "lost.md"]
    assert undefined(page.read_text()) == {"far"}


def test_pages_are_reached_over_others_and_in_circles(tmp_path: pathlib.Path) -> None:
    (tmp_path / "first.md").write_text("[next](second.md#part) [gone](gone.md)\n")
    (tmp_path / "second.md").write_text("[back](first.md) [third](third.md)\n")
    (tmp_path / "third.md").write_text("no links\n")
    (tmp_path / "lost.md").write_text("[back](first.md)\n")
    names = {page.name for page in reachable(tmp_path / "first.md")}
    assert names == {"first.md", "second.md", "third.md"}


def test_named_sources_are_found() -> None:
    page = "`a/b.hpp`, `c.hpp`, `c10d/Backend.hpp`, `d/e-f.py`\n\n    `g/h.hpp`\n"
    assert named_files(page) == {"a/b.hpp", "d/e-f.py"}
