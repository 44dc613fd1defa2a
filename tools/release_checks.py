"""Checks before a release; each gives one line, which is ok or failed with what to do.

A check returns what it found in a few words, or raises CheckFailedError with the remedy.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable

ROOT = pathlib.Path(__file__).resolve().parent.parent
BIN = ROOT / ".venv-release" / "bin"


class CheckFailedError(Exception):
    """Says what is wrong and what to do."""


def found(root: pathlib.Path, name: str, pattern: str) -> str:
    """Return what the group of a pattern matches in a file."""
    match = re.search(pattern, (root / name).read_text(encoding="utf-8"), re.MULTILINE)
    if match is None:
        raise CheckFailedError(f"{name} has no version: a line that matches {pattern}")
    return match[1]


def version(root: pathlib.Path) -> str:
    """Check that all files have the version that pyproject.toml takes from CMakeLists.txt."""
    source = found(root, "pyproject.toml", r'^input = "(.+)"')
    pattern = found(root, "pyproject.toml", r"^regex = '(.+)'")
    versions = {
        source: found(root, source, pattern),
        "CITATION.cff": found(root, "CITATION.cff", r"^version: (\S+)$"),
        "CHANGELOG.md": found(root, "CHANGELOG.md", r"^## (\d\S*)"),
    }
    if len(set(versions.values())) > 1:
        named = ", ".join(f"{name} has {number}" for name, number in versions.items())
        raise CheckFailedError(f"{named}: write the same version into all of them")
    dates = {
        "CITATION.cff": found(root, "CITATION.cff", r"^date-released: (\S+)$"),
        "CHANGELOG.md": found(root, "CHANGELOG.md", r"^## \d\S* - (\S+)$"),
    }
    if len(set(dates.values())) > 1:
        named = ", ".join(f"{name} has {day}" for name, day in dates.items())
        raise CheckFailedError(f"{named}: write the day of the release into both")
    return versions[source]


def changelog(root: pathlib.Path) -> str:
    """Check that each heading has text below it, except Unreleased, which must be empty."""
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"(?ms)^(##+) ([^\n]+)\n(.*?)(?=^##|\Z)", text)
    for at, (level, title, body) in enumerate(headings):
        deeper = at + 1 < len(headings) and len(headings[at + 1][0]) > len(level)
        if title == "Unreleased":
            if body.strip() or deeper:
                raise CheckFailedError(
                    "CHANGELOG.md has entries under Unreleased: move them to the version"
                )
        elif not body.strip() and not deeper:
            raise CheckFailedError(
                f"CHANGELOG.md has nothing under '{title}': fill it or remove it"
            )
    return f"{sum(level == '##' for level, *_ in headings)} sections"


def run(root: pathlib.Path, *command: str | pathlib.Path) -> str:
    """Return what a command prints; if it fails, raise CheckFailedError with its last lines."""
    try:
        done = subprocess.run(
            command, cwd=root, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    except OSError as error:
        raise CheckFailedError(f"{error.filename} cannot be run: {error.strerror}") from error
    if done.returncode != 0:
        last = " / ".join(line.strip() for line in done.stdout.splitlines()[-3:])
        name = " ".join(map(str, command))
        raise CheckFailedError(f"'{name}' exits with {done.returncode}: {last}")
    return done.stdout


def tree(root: pathlib.Path) -> str:
    """Check that nothing is uncommitted."""
    changed = run(root, "git", "status", "--porcelain").splitlines()
    if changed:
        raise CheckFailedError(
            f"{len(changed)} files differ from the commit: commit or remove {changed[0][3:]}"
        )
    return run(root, "git", "rev-parse", "--short", "HEAD").strip()


def package(root: pathlib.Path, kind: str, pattern: str) -> pathlib.Path:
    """Return the one file of this version in dist/."""
    files = sorted((root / "dist").glob(pattern))
    if len(files) != 1:
        raise CheckFailedError(
            f"dist/ has {len(files)} files {pattern}, not one: remove them and build again"
        )
    if not re.match(rf"gtopk-{re.escape(version(root))}[-.]", files[0].name):
        raise CheckFailedError(f"dist/{files[0].name} is another version's {kind}: build it again")
    return files[0]


def sdist(root: pathlib.Path) -> str:
    """Check that the sdist builds, and that PyPI can show its description."""
    for old in (root / "dist").glob("gtopk-*.tar.gz"):
        old.unlink()
    build = "import scikit_build_core.build as backend; backend.build_sdist('dist')"
    run(root, root / ".venv" / "bin" / "python", "-c", build)
    path = package(root, "sdist", "gtopk-*.tar.gz")
    run(root, BIN / "twine", "check", "--strict", path)
    return path.name


def wheel(root: pathlib.Path, build: bool) -> str:
    """Check that the wheel builds, and that PyPI can show its description."""
    if build:
        run(root, "tools/wheel")
    path = package(root, "wheel", "gtopk-*.whl")
    run(root, BIN / "twine", "check", "--strict", path)
    return path.name


def promised(shown: str) -> str | None:
    """Return the oldest platform that `auditwheel show` allows a wheel by the symbols it needs."""
    for pattern in (
        r'constrains\s+the\s+platform\s+tag\s+to\s+"([^"]+)"',
        r'consistent\s+with\s+the\s+following\s+platform\s+tag:\s+"([^"]+)"',
    ):
        match = re.search(pattern, shown)
        if match is not None:
            return match[1]
    return None


def platform(root: pathlib.Path) -> str:
    """Check that the wheel promises no older system than auditwheel finds that it runs on."""
    path = package(root, "wheel", "gtopk-*.whl")
    tag = path.stem.split("-")[-1]
    needed = promised(run(root, BIN / "auditwheel", "show", path))
    numbers = [re.match(r"manylinux_2_(\d+)_", each or "") for each in (tag, needed)]
    if numbers[0] is None:
        raise CheckFailedError(
            f"the wheel is tagged {tag}, which PyPI refuses: build it with tools/wheel"
        )
    if numbers[1] is None:
        raise CheckFailedError(
            f"auditwheel finds {needed}, no manylinux tag: see auditwheel show dist/{path.name}"
        )
    if int(numbers[0][1]) < int(numbers[1][1]):
        raise CheckFailedError(
            f"the wheel is tagged {tag} and needs {needed}: correct tools/wheel_platform.py"
        )
    return f"{tag}, auditwheel: {needed}"


def docs(root: pathlib.Path) -> str:
    """Check that the site builds strictly."""
    return run(root, "tools/docs", "build").splitlines()[-1].removeprefix("docs: ")


def report(name: str, check: Callable[[], str]) -> bool:
    """Runs one check and prints its line."""
    try:
        print(f"release: {name:<10} ok      {check()}", flush=True)
    except CheckFailedError as failure:
        print(f"release: {name:<10} failed  {failure}", flush=True)
        return False
    return True


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tools/release", description="Checks a release.")
    parser.add_argument("--check", action="store_true", required=True, help="run all checks")
    parser.add_argument("--no-build", action="store_true", help="take the wheel that is in dist/")
    given = parser.parse_args(arguments)
    checks: dict[str, Callable[[], str]] = {
        "version": lambda: version(ROOT),
        "changelog": lambda: changelog(ROOT),
        "tree": lambda: tree(ROOT),
        "docs": lambda: docs(ROOT),
        "sdist": lambda: sdist(ROOT),
        "wheel": lambda: wheel(ROOT, not given.no_build),
        "platform": lambda: platform(ROOT),
    }
    failures = sum(not report(name, check) for name, check in checks.items())
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
