"""The site in a browser: pages fit wide and narrow windows.

Chromium makes no window narrower than 500 pixels, so each page is shown in a frame of the width
that is tested. The screenshots lie in build/screenshots.
"""

from __future__ import annotations

import functools
import http.server
import json
import pathlib
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator

import pytest

from helpers.paths import ROOT

PAGES = [
    "index.html",
    "install.html",
    "training.html",
    "hosts.html",
    "tuning.html",
    "faq.html",
    "errors.html",
    "algorithms.html",
    "environment.html",
    "performance.html",
    "results/where-it-pays.html",
    "reference/python.html",
    "reference/cpp.html",
    "reference/cpp/classgtopk_1_1Communicator.html",
    "reference/cpp/collectives_8hpp.html",
]
SITE = ROOT / "build" / "site"
SHOTS = ROOT / "build" / "screenshots"
HEIGHT = 1600
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
FRAME = """<!doctype html><style>body {{ margin: 0 }} iframe {{ border: 0 }}</style>
<iframe src="/{page}" width="{width}" height="{height}"></iframe><pre hidden></pre><script>
// In virtual time: after the page's own scripts, which begin once it is loaded.
onload = () => setTimeout(() => {{
  const page = document.querySelector("iframe").contentDocument;
  const cut = e => e && e !== page.body
    && (getComputedStyle(e).overflowX !== "visible" || cut(e.parentElement));
  document.querySelector("pre").textContent = JSON.stringify({{
    width: page.scrollingElement.scrollWidth,
    letters: page.body.innerText.length,
    links: page.querySelectorAll("nav a, #main-menu a").length,
    missing: [...page.images].filter(e => !e.naturalWidth).map(e => e.src),
    outside: [...page.querySelectorAll("body *")]
      .filter(e => e.getBoundingClientRect().right > {width} + 1 && !cut(e.parentElement))
      .map(e => e.outerHTML.slice(0, 80)).slice(0, 5),
  }});
}}, 1000);
</script>"""

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(BROWSER is None, reason="chromium is missing"),
    pytest.mark.skipif(shutil.which("doxygen") is None, reason="doxygen is missing"),
    pytest.mark.skipif(
        not (ROOT / ".venv-docs").is_dir(),
        reason=".venv-docs is missing: tools/docs build makes it",
    ),
]


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves the site, and under /frame/WIDTH/ its pages in frames that measure them."""

    def do_GET(self) -> None:
        asked = re.fullmatch(r"/frame/(\d+)/(\S+)", self.path)
        if asked is None:
            super().do_GET()
            return
        text = FRAME.format(width=asked[1], page=asked[2], height=HEIGHT).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Where the site, as it is now, is served."""
    subprocess.run(["tools/docs", "build"], cwd=ROOT, check=True, capture_output=True)
    SHOTS.mkdir(parents=True, exist_ok=True)
    handler = functools.partial(Handler, directory=str(SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def look(address: str, page: str, width: int) -> tuple[dict[str, object], pathlib.Path]:
    """What the frame measured, and the screenshot."""
    assert BROWSER is not None
    shot = SHOTS / f"{page.removesuffix('.html').replace('/', '-')}-{width}.png"
    shot.unlink(missing_ok=True)
    command = [
        *(BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
        *(f"--window-size={width},{HEIGHT}", "--virtual-time-budget=10000", "--dump-dom"),
        *(f"--screenshot={shot}", f"{address}/frame/{width}/{page}"),
    ]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    (measured,) = re.findall(r'<pre hidden="">(.+?)</pre>', run.stdout, re.DOTALL)
    for code, letter in (("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")):
        measured = measured.replace(code, letter)
    return json.loads(measured), shot


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("page", PAGES)
def test_a_page_fits_and_shows_all(page: str, width: int, address: str) -> None:
    image = pytest.importorskip("PIL.Image")
    measured, shot = look(address, page, width)
    assert measured["missing"] == []
    assert measured["width"] <= width, measured["outside"]
    assert measured["links"] > 0
    assert measured["letters"] > 500
    with image.open(shot) as picture:
        assert picture.width == width
        colors = picture.convert("RGB").getcolors(maxcolors=1 << 24)
    background = max(count for count, _ in colors)
    assert 0.3 * picture.width * picture.height < background < 0.99 * picture.width * picture.height
