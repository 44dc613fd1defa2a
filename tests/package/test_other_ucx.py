"""Another UCX in the process: refused with both names, or used if it is as new.

A stand-in of a few lines has the SONAME of the other one, so no second UCX need be installed.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import libucx
import pytest

from helpers.ranks import WATCHDOG, environment

pytestmark = pytest.mark.loopback

OURS = pathlib.Path(libucx.__file__).parent / "lib"

STAND_IN = """
void ucp_get_version(unsigned *major, unsigned *minor, unsigned *release)
{
    *major = 1;
    *minor = 13;
    *release = 1;
}
"""

START = """
import ctypes, sys
def load(paths, mode=ctypes.DEFAULT_MODE):
    for path in paths.split(":"):
        try:
            ctypes.CDLL(path, mode=mode)
        except OSError as error:
            print("refused", error, flush=True)
def all_reduce():
    import torch, torch.distributed as dist
    try:
        dist.init_process_group("gtopk", store=dist.HashStore(), rank=0, world_size=1)
    except ImportError as error:
        print("ImportError:", error, flush=True)
        return
    numbers = torch.ones(4)
    dist.all_reduce(numbers)
    dist.destroy_process_group()
    with open("/proc/self/maps") as lines:
        loaded = sorted({line.split()[-1] for line in lines if "libucp.so" in line})
    print("works", loaded, flush=True)
other = sys.argv[1]
"""


@pytest.fixture(scope="module")
def older(tmp_path_factory) -> pathlib.Path:
    """A folder with libraries that say they are UCX 1.13.1."""
    folder = tmp_path_factory.mktemp("older")
    for name in ("libucp.so.0", "libucs.so.0"):
        command = ["g++", "-shared", "-fPIC", "-x", "c", "-", f"-Wl,-soname,{name}"]
        subprocess.run([*command, "-o", folder / name], input=STAND_IN, text=True, check=True)
    return folder


def run(script: str, *arguments: object, **env: str) -> str:
    """What it printed; it must end successfully."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", START + script, *map(str, arguments)],
        env={**environment(), **env},
        capture_output=True,
        text=True,
        timeout=WATCHDOG,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "mode"), [("libucp.so.0", "RTLD_GLOBAL"), ("libucs.so.0", "RTLD_LOCAL")]
)
def test_older_ucx_loaded_first_is_import_error_naming_both(older, name, mode):
    said = run(f"load(other, ctypes.{mode}); all_reduce()", older / name)
    version = "1.13.1" if name == "libucp.so.0" else "of an unknown version"
    assert f"ImportError: gtopk: this process has already loaded UCX {version}" in said
    assert f"({older / name})" in said
    assert f"needs UCX {libucx.__version__} ({OURS / 'libucp.so'}) or newer" in said
    assert "call libucx.load_library() before importing" in said


def test_older_ucx_loaded_first_does_not_disturb_import_torch(older):
    said = run(
        "load(other, ctypes.RTLD_GLOBAL)\nimport torch; print(*torch.ones(1))",
        older / "libucp.so.0",
    )
    assert said == "tensor(1.)\n"


def test_older_ucx_loaded_after_libucx_gets_the_wheels(older):
    script = "import libucx; libucx.load_library(); load('libucp.so.0'); all_reduce()"
    said = run(script, "", LD_LIBRARY_PATH=str(older))
    assert said == f"works ['{OURS / 'libucp.so'}']\n"


@pytest.mark.parametrize("path", ["{}", "libucp.so.0"])
def test_older_ucx_loaded_after_a_group_changes_nothing_in_it(older, path):
    script = "all_reduce(); load(other); all_reduce()"
    said = run(script, path.format(older / "libucp.so.0"), LD_LIBRARY_PATH=str(older))
    assert said.count("works") == 2, said
    assert f"'{OURS / 'libucp.so'}'" in said


@pytest.mark.parametrize("mode", ["RTLD_LOCAL", "RTLD_GLOBAL"])
def test_ucx_of_the_same_version_loaded_first_is_used(tmp_path, mode):
    # Loading the wheel's copy beside it would end the process by a signal.
    shutil.copytree(OURS, tmp_path / "lib", ignore=shutil.ignore_patterns("*.a", "*.la"))
    libraries = [tmp_path / "lib" / f"lib{part}.so.0" for part in ("ucs", "uct", "ucp")]
    said = run(f"load(other, ctypes.{mode}); all_reduce()", os.pathsep.join(map(str, libraries)))
    assert said == f"works ['{libraries[-1]}']\n"


def test_older_ucx_that_libucx_itself_prefers_is_an_import_error(older):
    env = {"RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY": "true", "LD_LIBRARY_PATH": str(older)}
    for name in ("libucp.so", "libucs.so"):
        shutil.copy(older / f"{name}.0", older / name)
    said = run("all_reduce()", "", **env)
    assert "ImportError: gtopk: UCX cannot be loaded: " in said
    assert f"In this process: UCX of an unknown version ({older}/libucs.so)" in said
