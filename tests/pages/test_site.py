"""The site: every page has a place, every public name an entry."""

from __future__ import annotations

import ast
import re

import pytest
import site_cpp
import site_pages

from helpers.docstrings import PACKAGE, Definition, definition, public_names
from helpers.pages import prose
from helpers.paths import ROOT

DOCS = ROOT / "docs"
NAMES = sorted(f"docs/{page.relative_to(DOCS).as_posix()}" for page in DOCS.rglob("*.md"))
ENTRIES = site_pages.entries((DOCS / site_pages.API).read_text(encoding="utf-8"))


def nav(config: str) -> list[str]:
    """The pages that mkdocs.yml lists."""
    (block,) = re.findall(r"(?m)^nav:\n((?:  .*\n)+)", config)
    return re.findall(r"(\S+\.md)$", block, re.MULTILINE)


def exported(source: str) -> list[str]:
    """What `__all__` has."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    raise AssertionError("no __all__")


def undocumented_fields(node: Definition) -> list[str]:
    """Fields of a class that no docstring follows, which the site would leave out."""
    after = [*node.body[1:], None]
    return [
        each.target.id
        for each, following in zip(node.body, after, strict=True)
        if isinstance(each, ast.AnnAssign)
        and isinstance(each.target, ast.Name)
        and not (isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant))
    ]


def read_differently(page: str) -> list[str]:
    """Lines that GitHub and the site, which is made by Python-Markdown, read differently."""
    wrong, before, lines = [], "", prose(page).splitlines()
    for line in lines:
        item = re.match(r"( *)(?:[-*+]|\d+\.) ", line)
        opens = item is not None and not re.match(r" *(?:[-*+]|\d+\.) | +\S", before)
        opens |= line.startswith("|") and not before.startswith("|")
        nested = item is not None and len(item[1]) % 4 != 0
        if (opens and before.strip()) or nested or re.match(r" +(?:\||```)", line):
            wrong.append(line)
        before = line
    return wrong


def test_the_site_lists_every_page_once() -> None:
    listed = nav((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    pages = {site_pages.site_path(path) for path in (*NAMES, *site_pages.PAGES)}
    assert pages - {*listed} == set(), "nav of mkdocs.yml lacks them"
    assert sorted(listed) == sorted(pages)


def test_the_reference_has_every_public_name_once() -> None:
    public = exported((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    assert sorted(each for each in ENTRIES if "." not in each) == sorted(public)
    assert {*public} - {"__version__"} == public_names().keys()


@pytest.mark.parametrize("name", [each for each in ENTRIES if "." in each])
def test_each_field_of_a_type_in_the_reference_has_a_docstring(name: str) -> None:
    *module, type_name = name.split(".")
    source = PACKAGE.joinpath(*module).with_suffix(".py").read_text(encoding="utf-8")
    assert undocumented_fields(definition(source, type_name)) == []


@pytest.mark.parametrize("path", [*NAMES, *site_pages.PAGES])
def test_links_of_the_site_lead_to_its_pages(path: str) -> None:
    pages = {name for name, _ in site_pages.outside_pages()} | {
        each.relative_to(DOCS).as_posix() for each in DOCS.rglob("*") if each.is_file()
    }
    pages |= {site_cpp.page_of(each.name) for each in (ROOT / site_cpp.HEADERS).iterdir()}
    text = site_pages.for_site((ROOT / path).read_text(encoding="utf-8"), path)
    assert {*site_pages.linked(text, site_pages.site_path(path))} - pages == set()


@pytest.mark.parametrize("path", [*NAMES, *site_pages.PAGES])
def test_github_and_the_site_read_pages_alike(path: str) -> None:
    assert read_differently((ROOT / path).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("path", "link", "expected"),
    [
        ("README.md", "docs/tuning.md#where-to-start", "tuning.md#where-to-start"),
        ("README.md", "docs/results/demo.svg", "results/demo.svg"),
        ("README.md", "CITATION.cff", "source/CITATION.cff.md"),
        ("docs/README.md", "../CONTRIBUTING.md", "contributing.md"),
        ("docs/results/convergence.md", "../lab.md", "../lab.md"),
        ("docs/results/convergence.md", "../../README.md#install", "../index.md#install"),
        ("docs/cpp.md", "../include/gtopk", "reference/cpp.md"),
        ("docs/cpp.md", "../include/gtopk/plan.hpp", "reference/cpp/plan_8hpp.html"),
        ("docs/cpp.md", "../examples/standalone", "source/examples/standalone/index.md"),
        ("docs/cpp.md", "#starting-it", "#starting-it"),
        ("docs/cpp.md", "https://far.example/x", "https://far.example/x"),
    ],
)
def test_links_are_those_of_the_site(path: str, link: str, expected: str) -> None:
    assert site_pages.for_site(f"[`a`]({link}) `[b]({link})`", path) == (
        f"[`a`]({expected}) `[b]({link})`"
    )
    assert site_pages.for_site(f"```\n[a]({link})\n```\n[b]: {link}\n", path) == (
        f"```\n[a]({link})\n```\n[b]: {expected}\n"
    )


def test_code_keeps_its_language_alone() -> None:
    page = "```python lightning\nimport torch\n```\n"
    assert site_pages.for_site(page, "README.md") == "```python\nimport torch\n```\n"


@pytest.mark.parametrize(
    ("code", "name"),
    [("gtopk.plan", "plan"), ("gtopk.stats()[0]", "stats"), ("gtopk.core", ""), ("gtopk", "")],
)
def test_public_names_in_code_lead_to_the_reference(code: str, name: str) -> None:
    page = f'<p>a <code>{code}</code> <a href="b"><code>{code}</code></a></p>'
    page += f"<pre><span></span><code>{code}</code></pre>"
    linked = page.replace(" <code", f' <a href="r.html#gtopk.{name}"><code').replace(
        "</code> ", "</code></a> "
    )
    assert site_pages.with_names(page, "r.html") == (linked if name else page)


def test_folders_become_lists_and_files_code() -> None:
    folder = "examples/standalone"
    assert "- [all_reduce.cpp](all_reduce.cpp.md)\n" in site_pages.source_page(folder)
    assert "\n``````cpp\n" in site_pages.source_page(f"{folder}/all_reduce.cpp")


def test_what_is_missing_is_found() -> None:
    assert nav("a: 1\nnav:\n  - A: a.md\n  - B:\n      - C: b/c.md\nhooks:\n  - d.md\n") == [
        "a.md",
        "b/c.md",
    ]
    assert site_pages.entries("::: gtopk.a\n\ntext ::: gtopk.b\n") == ["a"]
    source = 'class A:\n    """Text."""\n    a: int\n    """Text."""\n    b: int\n    c: int\n'
    assert undocumented_fields(definition(source, "A")) == ["b", "c"]
    assert read_differently(
        "# a\n- b\n\n- c\n  - d\n- e\n    - f\n\ng\n| h |\n\n| i |\n| j |\n"
    ) == [
        "- b",
        "  - d",
        "| h |",
    ]
