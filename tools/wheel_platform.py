"""Finds a wheel's Linux: the manylinux tag by the symbol versions that its libraries need.

A tag manylinux_2_N promises glibc 2.N, and the libstdc++ of distributions of that age; the table is
auditwheel's policy. auditwheel itself is not used because it would copy torch and UCX into the
wheel.
"""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

Version = tuple[int, ...]

# This is the first glibc 2.N whose distributions have this GLIBCXX.
LIBSTDCXX: dict[Version, int] = {
    (3, 4, 24): 28,
    (3, 4, 28): 31,
    (3, 4, 29): 34,
    (3, 4, 30): 35,
    (3, 4, 32): 38,
    (3, 4, 33): 40,
}


def wanted(wheel: pathlib.Path) -> dict[str, Version]:
    """Return the newest GLIBC and GLIBCXX that any library or program of the wheel needs."""
    newest: dict[str, Version] = {}
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            path = pathlib.PurePath(name)
            if ".so" not in path.name and path.parent.name != "bin":
                continue
            command = ["objdump", "-T", archive.extract(name, folder)]
            symbols = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            for family, numbers in re.findall(r"\b(GLIBC|GLIBCXX)_([0-9.]+)", symbols):
                version = tuple(map(int, numbers.split(".")))
                newest[family] = max(newest.get(family, (0,)), version)
    return newest


def manylinux(versions: dict[str, Version]) -> str | None:
    """Return the tag without the machine; None if libstdc++ is newer than the table."""
    fitting = [glibc for has, glibc in LIBSTDCXX.items() if has >= versions.get("GLIBCXX", (0,))]
    if not fitting:
        return None
    return f"manylinux_2_{max(min(fitting), versions.get('GLIBC', (2, 0))[1])}"


def platform(wheel: pathlib.Path) -> str:
    """Return the wheel's platform tag, or its current one if none can be determined."""
    given = wheel.stem.split("-")[-1]
    tag = manylinux(wanted(wheel))
    return given if tag is None else re.sub(r"^(many)?linux(_2_\d+)?", tag, given)


if __name__ == "__main__":
    print(platform(pathlib.Path(sys.argv[1])))
