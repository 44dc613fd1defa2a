"""Hooks of mkdocs.yml: pages of the site from outside docs/, and links that work on GitHub.

The README and its neighbours become pages of the site. A file or folder outside docs/ to which some
page links becomes a page that shows it. Pages in the repository stay as GitHub's readers need them;
their links are rewritten for the site. Only the hooks themselves need mkdocs.
"""

from __future__ import annotations

import pathlib
import posixpath
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import site_cpp

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = pathlib.Path(__file__).resolve().parent.parent
# These are pages of the site, by repository path, that are not where docs/ has them.
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "docs/README.md": "contents.md",
}
API = "reference/python.md"
HOME = "---\nhide:\n  - navigation\n---\n"
CODE = re.compile(r"(?ms)^```.*?^```$|^    .*?$|`[^`]*`")
LINK = re.compile(r"(?m)(?<=\]\()([^)\s]+)(?=\))|(?<=\]: )(\S+)$")
# A letter with a hat (θ̂): most fonts draw the hat beside the letter, site.css above it.
HAT = re.compile(r"(\w)\u0302")
MARKED = '<span class="hat">\\1<span>\u0302</span></span>'
LANGUAGES = {".cpp": "cpp", ".hpp": "cpp", ".py": "python", ".toml": "toml", ".txt": "text"}


def anchor(heading: str, _: str = "-") -> str:
    """Return a heading's anchor, as GitHub makes it (and test_pages.py checks it)."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def site_path(path: str) -> str:
    """Return the site's path of a path in the repository."""
    if path in PAGES:
        return PAGES[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path == site_cpp.HEADERS:
        return "reference/cpp.md"
    if path.startswith(f"{site_cpp.HEADERS}/"):
        return site_cpp.page_of(path)
    return f"source/{path}/index.md" if (ROOT / path).is_dir() else f"source/{path}.md"


def repository_path(page: str) -> str:
    """Return the repository's path of a page of the site."""
    for path, each in PAGES.items():
        if each == page:
            return path
    return f"docs/{page}"


def with_links(text: str, change: Callable[[str], str]) -> str:
    """Return the page with each link within the repository changed; code is left alone."""

    def changed(match: re.Match[str]) -> str:
        link = match.group()
        foreign = re.match(r"[a-z]+:|#", link)
        return link if foreign else change(link)

    parts, end = [], 0
    for code in CODE.finditer(text):
        parts += [LINK.sub(changed, text[end : code.start()]), code.group()]
        end = code.end()
    return "".join([*parts, LINK.sub(changed, text[end:])])


def linked(text: str, path: str) -> list[str]:
    """Return the paths in the repository to which the page at `path` links."""
    found = []

    def note(link: str) -> str:
        found.append(_target(link.partition("#")[0], path))
        return link

    with_links(text, note)
    return found


def for_site(text: str, path: str) -> str:
    """Return the page at `path` in the repository, with links to the site's pages."""
    folder = posixpath.dirname(site_path(path))

    def change(link: str) -> str:
        place, hash_, part = link.partition("#")
        return posixpath.relpath(site_path(_target(place, path)), folder or ".") + hash_ + part

    # Python-Markdown does not accept a second word there; GitHub and the tests do.
    return with_links(re.sub(r"(?m)^(```\w+) .*$", r"\1", text), change)


def _target(link: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), link))


def source_page(path: str) -> str:
    """Return a page that shows a file, or lists a folder's files."""
    place = ROOT / path
    title = f"---\nsearch:\n  exclude: true\n---\n# {path}\n\n"
    if place.is_dir():
        names = sorted(each.name for each in place.iterdir() if each.is_file())
        here = posixpath.dirname(site_path(path))
        targets = [posixpath.relpath(site_path(f"{path}/{name}"), here) for name in names]
        return title + "".join(f"- [{n}]({t})\n" for n, t in zip(names, targets, strict=True))
    language = LANGUAGES.get(place.suffix, "text")
    # Use a fence that no line of the file can close.
    return f"{title}``````{language}\n{place.read_text(encoding='utf-8').rstrip()}\n``````\n"


def outside_pages() -> Iterator[tuple[str, str]]:
    """Yield pages of the site that docs/ lacks, with their text: first neighbours, then sources."""
    docs = {f"docs/{each.relative_to(ROOT / 'docs').as_posix()}" for each in _pages_of_docs()}
    sources = set()
    for path in sorted(docs | PAGES.keys()):
        text = (ROOT / path).read_text(encoding="utf-8")
        sources |= {each for each in linked(text, path) if not each.startswith("docs/")}
        if path in PAGES:
            yield PAGES[path], HOME + text if path == "README.md" else text
    sources = {each for each in sources - PAGES.keys() if not each.startswith(site_cpp.HEADERS)}
    for folder in [each for each in sources if (ROOT / each).is_dir()]:
        sources |= {f"{folder}/{each.name}" for each in (ROOT / folder).iterdir() if each.is_file()}
    for path in sorted(sources):
        yield site_path(path), source_page(path)


def _pages_of_docs() -> Iterator[pathlib.Path]:
    return (ROOT / "docs").rglob("*.md")


def entries(reference: str) -> list[str]:
    """Return the names, without the prefix gtopk, whose docstrings are in the reference."""
    return re.findall(r"(?m)^::: gtopk\.(\S+)$", reference)


def with_names(html: str, reference: str) -> str:
    """Return the page with public names in code linked to the reference, unless already linked."""
    public = entries((ROOT / "docs" / API).read_text(encoding="utf-8"))

    def link(match: re.Match[str]) -> str:
        if match[1] not in public:
            return match[0]
        return f'<a href="{reference}#gtopk.{match[1]}">{match[0]}</a>'

    # Code at the beginning of a link or a heading follows the end of an attribute; a block of code
    # follows an empty span.
    return re.sub(r'(?<!">)(?<!<span></span>)<code>gtopk\.(\w+)\b[^<]*</code>', link, html)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Give headings the anchors that GitHub gives them."""
    config.mdx_configs["toc"]["slugify"] = anchor
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside docs/; the README replaces the one of docs/ as the home page."""
    from mkdocs.structure.files import File, InclusionLevel

    readme = files.get_file_from_path("README.md")
    if readme is not None:
        files.remove(readme)
    for name, text in outside_pages():
        page = File.generated(config, name, content=text)
        if name.startswith("source/"):
            page.inclusion = InclusionLevel.NOT_IN_NAV
        files.append(page)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links lead to the site's pages."""
    name = page.file.src_uri
    return markdown if name.startswith("source/") else for_site(markdown, repository_path(name))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Mark letters with hats, link public names, and the pages that docstrings name."""
    html = re.sub(r">[^<]+<", lambda text: HAT.sub(MARKED, text[0]), html)
    reference = files.get_file_from_path(API)
    assert reference is not None
    html = with_names(html, reference.url_relative_to(page.file))
    if page.file.src_uri != API:
        return html

    def link(match: re.Match[str]) -> str:
        file = files.get_file_from_path(match[1])
        if file is None:
            raise ValueError(f"a docstring names {match[0]}, which does not exist")
        return f'<a href="{file.url_relative_to(page.file)}">{match[0]}</a>'

    return re.sub(r"\bdocs/([\w/-]+\.md)\b", link, html)
