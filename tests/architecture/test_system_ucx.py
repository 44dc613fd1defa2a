"""A build against the system's UCX: which versions it accepts.

Debian 12 has UCX 1.13, which is too old; the wheel's UCX stands in for a newer one.
"""

from __future__ import annotations

import os
import pathlib
import subprocess

import libucx

from helpers.paths import ROOT

WHEEL = pathlib.Path(libucx.__file__).parent
PACKAGE = """
Name: ucx
Description: Unified Communication X
Version: {version}
Libs: -L{prefix}/lib -Wl,-rpath,{prefix}/lib -lucp -lucs
Cflags: -isystem {prefix}/include
"""


def configured(folder: pathlib.Path, version: str | None) -> subprocess.CompletedProcess:
    """CMake's output if pkg-config finds that version of UCX."""
    packages = folder / "packages"
    packages.mkdir()
    if version:
        (packages / "ucx.pc").write_text(PACKAGE.format(version=version, prefix=WHEEL))
    command = ["cmake", "-S", str(ROOT), "-B", str(folder / "build"), "-G", "Ninja"]
    command += ["-DGTOPK_UCX=system", "-DCMAKE_BUILD_TYPE=Release"]
    env = {**os.environ, "PKG_CONFIG_LIBDIR": str(packages), "PKG_CONFIG_PATH": ""}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def only_line(done: subprocess.CompletedProcess) -> str:
    """Undoes CMake's line breaks."""
    assert done.returncode != 0
    assert done.stderr.count("CMake Error") == 1, done.stderr
    return " ".join(done.stderr.split())


def test_an_old_ucx_of_the_system_is_refused_with_both_versions(tmp_path):
    said = only_line(configured(tmp_path, "1.13.1"))
    assert "UCX 1.13.1 is too old, 1.17 or newer is needed" in said
    assert "PKG_CONFIG_PATH" in said


def test_a_system_without_ucx_is_told_what_to_install(tmp_path):
    assert "pkg-config finds no ucx. Install UCX 1.17 or newer" in only_line(
        configured(tmp_path, None)
    )


def test_a_newer_one_is_taken(tmp_path):
    done = configured(tmp_path, "1.22.0")
    assert done.returncode == 0, done.stderr
    assert f"{WHEEL}/include" in (tmp_path / "build/build.ninja").read_text()
