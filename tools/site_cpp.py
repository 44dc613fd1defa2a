"""Hook of mkdocs.yml: the C++ reference, which Doxygen makes from the public headers.

Doxygen's own pages become files of the site, so that mkdocs checks the links that lead to them.
"""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEADERS = "include/gtopk"
FOLDER = "reference/cpp"  # folder of the site


def page_of(header: str) -> str:
    """Return the site's page of a public header, as Doxygen names it."""
    name = pathlib.PurePosixPath(header).name
    return f"{FOLDER}/{name.replace('_', '__').replace('.', '_8')}.html"


def doxygen(headers: pathlib.Path, into: pathlib.Path) -> None:
    """Make the pages in `into`/html; raise ValueError with Doxygen's warnings, if any."""
    if shutil.which("doxygen") is None:
        raise ValueError("the C++ reference needs doxygen 1.9.4 or newer: apt-get install doxygen")
    settings = (ROOT / "tools" / "doxygen" / "Doxyfile").read_text(encoding="utf-8")
    settings += f"INPUT = {headers}\nOUTPUT_DIRECTORY = {into}\n"
    settings += f"STRIP_FROM_PATH = {headers.parent}\nSTRIP_FROM_INC_PATH = {headers.parent}\n"
    run = subprocess.run(
        ["doxygen", "-"], input=settings, capture_output=True, text=True, cwd=ROOT, check=False
    )
    if run.returncode != 0 or run.stderr:
        raise ValueError(f"doxygen found faults in the public headers:\n{run.stderr}")


def with_pages(html: str, exists: Callable[[str], bool]) -> str:
    """Return a Doxygen page, with links where a comment names a page of docs/."""

    def link(match: re.Match[str]) -> str:
        if not exists(f"{match[1]}.md"):
            raise ValueError(f"a public header names {match[0]}, which does not exist")
        return f'<a href="../../{match[1]}.html">{match[0]}</a>'

    return re.sub(r"\bdocs/([\w/-]+)\.md\b", link, html)


def pages() -> Iterator[tuple[str, bytes]]:
    """Yield Doxygen's files, by their path in the site."""
    with tempfile.TemporaryDirectory() as folder:
        doxygen(ROOT / HEADERS, pathlib.Path(folder))
        html = pathlib.Path(folder) / "html"
        for path in sorted(html.rglob("*")):
            if path.is_file():
                yield f"{FOLDER}/{path.relative_to(html).as_posix()}", path.read_bytes()


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add Doxygen's pages."""
    from mkdocs.structure.files import File

    for name, content in pages():
        if name.endswith(".html") and "_source" not in name:
            text = with_pages(content.decode(), lambda page: files.src_uris.get(page) is not None)
            content = text.encode()
        files.append(File.generated(config, name, content=content))
    return files
