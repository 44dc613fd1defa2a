"""The texts that docs/errors.md explains are those of the sources."""

from __future__ import annotations

import re

import pytest

from helpers.paths import ROOT

PAGE = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")


def quoted(page: str) -> list[str]:
    """The texts in the first columns of the page's tables."""
    cells = re.findall(r"(?m)^\| ([^|]*`[^|]*) \|", page)
    return [text for cell in cells for text in re.findall(r"`([^`]+)`", cell)]


def texts(source: str) -> str:
    """A source with its strings joined over lines, and … for what is filled in."""
    joined = re.sub(r"\"\s*\n\s*f?\"", "", source)
    return re.sub(r"\{[^{}]*\}", "…", joined)


@pytest.fixture(scope="module")
def all_texts() -> str:
    """Those of the library and of the Python package."""
    paths = [path for path in (ROOT / "src").rglob("*") if path.suffix in (".cpp", ".hpp", ".py")]
    return "\n".join(texts(path.read_text(encoding="utf-8")) for path in sorted(paths))


def test_the_page_explains_at_least_fifteen_texts() -> None:
    assert len(quoted(PAGE)) >= 15


@pytest.mark.parametrize("text", quoted(PAGE))
def test_an_explained_text_is_in_the_sources(text: str, all_texts: str) -> None:
    assert text in all_texts


def test_texts_are_joined_and_found() -> None:
    source = 'f"rank {rank} of "\n    f"{size:.3g} left"'
    assert texts(source) == 'f"rank … of … left"'
    page = "| text | cause |\n| --- | --- |\n| `a …` or `b` | see `c` |\n"
    assert quoted(page) == ["a …", "b"]
