"""tools/release --check finds what is wrong with a copy."""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess

import pytest
import release_checks
from release_checks import CheckFailedError

from helpers.paths import ROOT

FILES = ("pyproject.toml", "CMakeLists.txt", "CITATION.cff", "CHANGELOG.md")
ENTRY = "### Added\n\n- An entry.\n\n"


@pytest.fixture
def copy(tmp_path: pathlib.Path) -> pathlib.Path:
    """What has a version, with a changelog of two versions."""
    for name in FILES:
        shutil.copy(ROOT / name, tmp_path)
    number = release_checks.found(ROOT, "CITATION.cff", r"^version: (\S+)$")
    day = release_checks.found(ROOT, "CITATION.cff", r"^date-released: (\S+)$")
    (tmp_path / "CHANGELOG.md").write_text(
        f"# Changelog\n\n## Unreleased\n\n## {number} - {day}\n\n{ENTRY}"
        "## 0.0.1 - 2026-01-01\n\nText.\n"
    )
    return tmp_path


def edit(copy: pathlib.Path, name: str, pattern: str, replacement: str) -> None:
    text = (copy / name).read_text()
    changed = re.sub(pattern, replacement, text, count=1)
    assert changed != text
    (copy / name).write_text(changed)


def test_the_versions_of_the_repository_agree() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", release_checks.version(ROOT))


def test_a_good_copy_passes(copy: pathlib.Path) -> None:
    assert release_checks.version(copy) == release_checks.version(ROOT)
    assert release_checks.changelog(copy) == "3 sections"


@pytest.mark.parametrize(
    ("name", "pattern", "replacement", "message"),
    [
        (
            "CMakeLists.txt",
            r"gtopk VERSION \S+",
            "gtopk VERSION 9.8.7",
            r"CMakeLists.txt has 9\.8\.7",
        ),
        ("CMakeLists.txt", r"gtopk VERSION \S+", "gtopk", "CMakeLists.txt has no version"),
        ("CITATION.cff", r"\nversion: \S+", "\nversion: 9.8.7", r"CITATION.cff has 9\.8\.7"),
        ("CITATION.cff", r"date-released: \S+", "date-released: 1999-01-01", "write the day"),
        ("CHANGELOG.md", r"## \d\S+", "## 9.8.7", r"CHANGELOG.md has 9\.8\.7"),
    ],
)
def test_versions_that_differ(
    copy: pathlib.Path, name: str, pattern: str, replacement: str, message: str
) -> None:
    edit(copy, name, pattern, replacement)
    with pytest.raises(CheckFailedError, match=message):
        release_checks.version(copy)


@pytest.mark.parametrize(
    ("pattern", "replacement", "message"),
    [
        (r"- An entry.\n\n", "", "nothing under 'Added'"),
        (r"Text.\n", "", "nothing under '0.0.1 - 2026-01-01'"),
        (r"## Unreleased\n\n", f"## Unreleased\n\n{ENTRY}", "entries under Unreleased"),
    ],
)
def test_sections_of_the_changelog(
    copy: pathlib.Path, pattern: str, replacement: str, message: str
) -> None:
    edit(copy, "CHANGELOG.md", pattern, replacement)
    with pytest.raises(CheckFailedError, match=message):
        release_checks.changelog(copy)


def test_what_is_not_committed(copy: pathlib.Path) -> None:
    identity = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    for command in (("init", "-q"), ("add", "."), (*identity, "commit", "-q", "-m", "All")):
        subprocess.run(["git", *command], cwd=copy, check=True)
    assert release_checks.tree(copy)
    (copy / "left_over").touch()
    with pytest.raises(CheckFailedError, match="left_over"):
        release_checks.tree(copy)


def test_a_package_of_another_version(copy: pathlib.Path) -> None:
    (copy / "dist").mkdir()
    with pytest.raises(CheckFailedError, match="0 files"):
        release_checks.package(copy, "wheel", "gtopk-*.whl")
    wheel = copy / "dist" / f"gtopk-{release_checks.version(copy)}-py3-none-linux_x86_64.whl"
    wheel.touch()
    assert release_checks.package(copy, "wheel", "gtopk-*.whl") == wheel
    wheel.rename(copy / "dist" / "gtopk-9.8.7-py3-none-linux_x86_64.whl")
    with pytest.raises(CheckFailedError, match="another version's wheel"):
        release_checks.package(copy, "wheel", "gtopk-*.whl")


@pytest.mark.parametrize(
    ("tag", "needed", "message"),
    [
        ("manylinux_2_34_x86_64", "manylinux_2_34_x86_64", None),
        ("manylinux_2_35_x86_64", "manylinux_2_34_x86_64", None),
        ("manylinux_2_34_x86_64", "manylinux_2_35_x86_64", "correct tools/wheel_platform.py"),
        ("linux_x86_64", "manylinux_2_34_x86_64", "which PyPI refuses"),
        ("manylinux_2_34_x86_64", "linux_x86_64", "no manylinux tag"),
    ],
)
def test_the_platform(
    copy: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    tag: str,
    needed: str,
    message: str | None,
) -> None:
    (copy / "dist").mkdir()
    (copy / "dist" / f"gtopk-{release_checks.version(copy)}-py3-none-{tag}.whl").touch()
    shown = (
        'gtopk.whl is consistent with\nthe following platform tag: "linux_x86_64".\n\n'
        f'This constrains the platform tag to\n"{needed}".'
    )
    monkeypatch.setattr(release_checks, "run", lambda *_: shown)
    if message is None:
        assert release_checks.platform(copy) == f"{tag}, auditwheel: {needed}"
    else:
        with pytest.raises(CheckFailedError, match=message):
            release_checks.platform(copy)


def test_a_command_that_fails(tmp_path: pathlib.Path) -> None:
    assert release_checks.run(tmp_path, "sh", "-c", "echo good") == "good\n"
    with pytest.raises(CheckFailedError, match="exits with 3: bad"):
        release_checks.run(tmp_path, "sh", "-c", "echo bad >&2; exit 3")
    with pytest.raises(CheckFailedError, match="cannot be run"):
        release_checks.run(tmp_path, tmp_path / "absent")


def test_one_line_for_each_check(capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> str:
        raise CheckFailedError("wrong: mend it")

    assert release_checks.report("tree", lambda: "abc")
    assert not release_checks.report("docs", fails)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "release: tree       ok      abc",
        "release: docs       failed  wrong: mend it",
    ]
