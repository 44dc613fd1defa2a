"""Makes the folder for the machine with the GPU: the unpacked wheel, UCX, hwloc and checks.

Everything is stripped, and files that are not used there are left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import pathlib
import re
import shutil
import subprocess
import zipfile

from gpu_check.errors import CheckError, UsageError
from gpu_check.machine import BUILT_TEST_KERNELS, TEST_KERNELS

MIB = 1 << 20
KERNELS = "libgtopk_cuda.so"
# These are the transports of a machine with a GPU and no RDMA, and the hooks into CUDA's memory
# calls.
UCX_LIBRARIES = ["libucs", "libucs_signal", "libucm", "libuct", "libucp"]
UCX_MODULES = ["libucm_cuda", "libuct_cuda", "libuct_cma"]
HWLOC = "libhwloc.so.15"
# These libraries are on every system that has Python and torch, or are torch's own.
SYSTEM = re.compile(
    r"(lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|cuda|nvidia-ml|torch\w*|c10)|ld-linux\S*)\.so"
)


def pack(root: pathlib.Path, options: argparse.Namespace) -> int:
    """Makes the folder; raises CheckError if it is too large or something is missing."""
    whole: pathlib.Path = options.into
    if whole.exists() and not (whole / "manifest.json").exists() and any(whole.iterdir()):
        raise UsageError(f"--into {whole} has other things in it: name an empty folder")
    ucx = _ucx_package(root)
    wheel = options.wheel or _built(root, options.torch)
    into = whole.with_name(f"{whole.name}.part")
    shutil.rmtree(into, ignore_errors=True)
    site, libraries = into / "site", into / "lib"
    libraries.mkdir(parents=True)
    _unpack(wheel, site, options.torch)
    if options.tests is not None and not options.tests.is_file():
        raise UsageError(f"--tests {options.tests}: there is no such file")
    if options.kernels is not None:
        if not options.kernels.is_file():
            raise UsageError(f"--kernels {options.kernels}: there is no such file")
        shutil.copy(options.kernels, site / "gtopk" / KERNELS)
    if not (site / "gtopk" / KERNELS).exists():
        raise CheckError(
            f"{wheel.name} has no kernels for GPUs: build it with tools/wheel, or name "
            f"them: --kernels build/release/src/cuda/{KERNELS}"
        )
    _ucx(ucx, site)
    hwloc = _hwloc(libraries)
    (into / "bin").mkdir()
    shutil.copy(options.tests or _built_tests(root), into / "bin" / TEST_KERNELS)
    for library in [*site.rglob("*.so*"), *libraries.iterdir()]:
        if not library.is_symlink():
            subprocess.run(["strip", "--strip-unneeded", str(library)], check=True)
    for program in _programs(into):
        subprocess.run(["strip", str(program)], check=True)
        program.chmod(0o755)
    missing = _missing(into)
    if missing:
        raise CheckError(f"nothing packed is {', '.join(missing)}, which libraries here need")
    shutil.copy(root / "tools" / "gpu-check", into)
    shutil.copytree(
        root / "tools" / "gpu_check",
        into / "gpu_check",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    manifest = {
        "wheel": wheel.name,
        "torch": options.torch,
        "commit": _commit(root),
        "hwloc": hwloc,
        "kernels_bytes": (site / "gtopk" / KERNELS).stat().st_size,
    }
    (into / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    size = bytes_of(into)
    print(f"gpu-check: {whole}: {size / MIB:.1f} MiB")
    if size > options.most * MIB:
        raise CheckError(f"that is more than --most {options.most:g} MiB")
    shutil.rmtree(whole, ignore_errors=True)
    into.rename(whole)
    print(f"gpu-check: there, in this folder: python3 gpu-check run (torch {options.torch})")
    return 0


def bytes_of(folder: pathlib.Path) -> int:
    return sum(each.lstat().st_size for each in folder.rglob("*") if not each.is_dir())


def _built(root: pathlib.Path, torch: str) -> pathlib.Path:
    subprocess.run([str(root / "tools" / "wheel"), "--no-setup", torch], check=True)
    (wheel,) = (root / "dist").glob("gtopk-*.whl")
    return wheel


def _built_tests(root: pathlib.Path) -> pathlib.Path:
    """Build test_kernels in the release build, where tools/wheel has built most of it."""
    subprocess.run(["cmake", "--preset", "release"], cwd=root, check=True)
    build = ["cmake", "--build", "--preset", "release", "--target", TEST_KERNELS]
    subprocess.run(build, cwd=root, check=True)
    return root / BUILT_TEST_KERNELS


def _unpack(wheel: pathlib.Path, site: pathlib.Path, torch: str) -> None:
    if not wheel.is_file():
        raise UsageError(f"--wheel {wheel}: there is no such file")
    library = f"gtopk/_torch_{torch.replace('.', '_')}.so"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        if library not in names:
            there = [each for each in names if each.startswith("gtopk/_torch_")]
            raise CheckError(f"{wheel.name} has nothing for torch {torch}; it has {there}")
        archive.extractall(
            site, [each for each in names if "/_torch_" not in each or each == library]
        )


def _ucx_package(root: pathlib.Path) -> pathlib.Path:
    """Find the UCX package of this Python, or of the checkout's."""
    found = importlib.util.find_spec("libucx")
    if found is not None and found.origin is not None:
        return pathlib.Path(found.origin).parent
    for package in root.glob(".venv/lib/python3*/site-packages/libucx"):
        return package
    raise CheckError("libucx is not installed here: run tools/setup first")


def _ucx(package: pathlib.Path, site: pathlib.Path) -> None:
    """Copy the wheel's package without headers and static libraries."""
    to = site / "libucx"
    (to / "lib" / "ucx").mkdir(parents=True)
    for each in package.glob("*.py"):
        shutil.copy(each, to)
    for each in ("UCX_WHEEL_VERSION.txt", "GIT_COMMIT"):
        shutil.copy(package / each, to)
    for folder, names in (("lib", UCX_LIBRARIES), ("lib/ucx", UCX_MODULES)):
        for name in names:
            real = (package / folder / f"{name}.so.0").resolve()
            shutil.copy(real, to / folder / f"{name}.so.0")
            (to / folder / f"{name}.so").symlink_to(f"{name}.so.0")
    beside = package.parent / "libucx_cu13.libs"
    needed = {each for library in (to / "lib").rglob("*.so.0") for each in _needs(library)}
    for each in beside.iterdir() if beside.is_dir() else ():
        if each.name in needed:
            (site / beside.name).mkdir(exist_ok=True)
            shutil.copy(each, site / beside.name)


def _hwloc(to: pathlib.Path) -> str:
    """Copy hwloc if it is installed; without it, gtopk runs but binds nothing."""
    said = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    found = re.search(rf"{re.escape(HWLOC)} .*=> (\S+)", said)
    if found is None:
        return "not installed here: left out"
    shutil.copy(pathlib.Path(found[1]).resolve(), to / HWLOC)
    for name in _needs(to / HWLOC):
        if not SYSTEM.match(name) and (other := re.search(rf"{re.escape(name)} .*=> (\S+)", said)):
            shutil.copy(pathlib.Path(other[1]).resolve(), to / name)
    return HWLOC


def _needs(library: pathlib.Path) -> list[str]:
    said = subprocess.run(
        ["readelf", "-d", str(library)], capture_output=True, text=True, check=True
    ).stdout
    return re.findall(r"\(NEEDED\).*\[(\S+)\]", said)


def _programs(into: pathlib.Path) -> list[pathlib.Path]:
    return [*(into / "site" / "gtopk_programs" / "bin").iterdir(), *(into / "bin").iterdir()]


def _missing(into: pathlib.Path) -> list[str]:
    """Return libraries that packed ones need and that are neither packed nor everywhere."""
    packed = [*(into / "site").rglob("*.so*"), *(into / "lib").iterdir(), *_programs(into)]
    there = {each.name for each in packed}
    needed = {name for each in packed if not each.is_symlink() for name in _needs(each)}
    return sorted(each for each in needed - there if not SYSTEM.match(each))


def _commit(root: pathlib.Path) -> str:
    said = subprocess.run(
        ["git", "-C", str(root), "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
    )
    return said.stdout.strip() or "unknown"
