"""A third-party program builds and runs against `cmake --install`'s output."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess

import libucx
import pytest

from helpers.paths import ROOT
from helpers.ranks import free_port

BUILD = ROOT / "build" / "release"
EXAMPLE = ROOT / "examples" / "standalone"
UCX = pathlib.Path(libucx.__file__).parent / "lib"

pytestmark = pytest.mark.loopback


def done(*command: object, **env: str) -> str:
    """What it printed; it must end successfully."""
    words = [str(each) for each in command]
    ended = subprocess.run(
        words, env={**os.environ, **env}, capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, f"{words}\n{ended.stdout}{ended.stderr}"
    return ended.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> pathlib.Path:
    if not (BUILD / "libgtopk.a").is_file():
        pytest.skip("build/release has no library: tools/wheel or the preset release builds it")
    prefix = tmp_path_factory.mktemp("installed")
    done("cmake", "--install", BUILD, "--prefix", prefix, "--component", "development")
    return prefix


def runs(program: pathlib.Path, **env: str) -> None:
    """Runs the example on two ranks."""
    port = str(free_port())
    places = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **env}
    ranks = [
        subprocess.Popen(
            [program], env={**os.environ, **places, "RANK": rank}, stdout=-1, text=True
        )
        for rank in "01"
    ]
    said = [rank.communicate(timeout=60)[0] for rank in ranks]
    assert said == ["rank 0 of 2: 2\n", "rank 1 of 2: 2\n"]


def test_the_example_finds_it_with_cmake(installed, tmp_path):
    options = [f"-DCMAKE_PREFIX_PATH={installed}", f"-Ducx_DIR={UCX / 'cmake' / 'ucx'}"]
    done("cmake", "-G", "Ninja", "-S", EXAMPLE, "-B", tmp_path, *options)
    done("cmake", "--build", tmp_path)
    runs(tmp_path / "all_reduce")


def test_the_example_finds_it_with_pkg_config(installed, tmp_path):
    if shutil.which("pkg-config") is None:
        pytest.skip("no pkg-config")
    where = str(installed / "lib" / "pkgconfig")
    said = done("pkg-config", "--cflags", "--libs", "gtopk", PKG_CONFIG_PATH=where)
    program = tmp_path / "all_reduce"
    flags = [f"-L{UCX}", f"-Wl,-rpath,{UCX}"]
    done("g++", EXAMPLE / "all_reduce.cpp", "-o", program, *flags, *said.split())
    runs(program)


def test_the_headers_of_the_public_surface_are_all_there(installed):
    names = {path.name for path in (ROOT / "include" / "gtopk").glob("*.hpp")}
    assert {path.name for path in (installed / "include" / "gtopk").iterdir()} == names
