"""The wheel that tools/wheel built: its tags, and what it contains."""

from __future__ import annotations

import configparser
import ctypes
import email
import pathlib
import platform as machine
import re
import subprocess
import zipfile

import pytest
import torch
from torch_requirement import requirement
from wheel_platform import manylinux, platform, wanted

import gtopk
from helpers.paths import ROOT

BUNDLED = {"libfmt", "libhwy"}
CORE = "libgtopk_core"
KERNELS = "libgtopk_cuda"
# What is present wherever it runs: torch, UCX, and what manylinux promises.
TORCH = {"libtorch_cpu", "libc10"}
UCX = {"libucp", "libucs"}
PROMISED = {"libstdc++", "libm", "libgcc_s", "libc", "ld-linux-x86-64", "ld-linux-aarch64"}


@pytest.fixture(scope="module")
def unpacked(wheel, tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("wheel")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def libraries(unpacked: pathlib.Path) -> list[pathlib.Path]:
    return sorted((unpacked / "gtopk").glob("_torch_*.so"))


def programs(unpacked: pathlib.Path) -> list[pathlib.Path]:
    return sorted((unpacked / "gtopk_programs" / "bin").iterdir())


def minors(unpacked: pathlib.Path) -> list[tuple[int, int]]:
    names = [re.fullmatch(r"_torch_(\d+)_(\d+)\.so", each.name) for each in libraries(unpacked)]
    return [(int(found[1]), int(found[2])) for found in names if found]


def information(unpacked: pathlib.Path, file: str) -> str:
    (folder,) = unpacked.glob("gtopk-*.dist-info")
    return (folder / file).read_text()


def dynamic(library: pathlib.Path, tag: str) -> list[str]:
    said = subprocess.run(
        ["readelf", "--wide", "-d", library], capture_output=True, text=True, check=True
    ).stdout
    return re.findall(rf"\({tag}\).*\[(.*)\]", said)


def needs(library: pathlib.Path) -> set[str]:
    return {each.split(".so")[0] for each in dynamic(library, "NEEDED")}


def exported(library: pathlib.Path) -> set[str]:
    """Names of what others can call of it, without arguments."""
    said = subprocess.run(
        ["nm", "--dynamic", "--defined-only", "--demangle", library],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return {line.split(" ", 2)[2].split("(")[0] for line in said.splitlines()}


def test_wheel_is_tagged_py3_and_for_the_platform_of_its_symbols(wheel, unpacked):
    name = wheel.stem.split("-")
    assert name[2:4] == ["py3", "none"]
    tags = email.message_from_string(information(unpacked, "WHEEL")).get_all("Tag")
    assert tags == ["-".join(name[2:])]
    assert name[4] == platform(wheel)
    assert not [each for each in unpacked.rglob("*.so*") if "cpython" in each.name]


def test_wheel_requires_the_torch_versions_it_has_libraries_for(unpacked):
    metadata = email.message_from_string(information(unpacked, "METADATA"))
    requires = [each.replace(" ", "") for each in metadata.get_all("Requires-Dist")]
    torches, ucx = sorted(requires, reverse=True)
    assert sorted(torches.removeprefix("torch").split(",")) == sorted(
        requirement(minors(unpacked)).removeprefix("torch").split(",")
    )
    assert ucx.startswith("libucx-cu13")
    assert metadata["Requires-Python"].replace(" ", "") in (">=3.10,<3.15", "<3.15,>=3.10")
    assert metadata["Version"] == gtopk.__version__
    major, minor = torch.__version__.split(".")[:2]
    assert (int(major), int(minor)) in minors(unpacked)


def test_the_requirement_names_these_versions_and_no_others():
    assert requirement([(2, 11)]) == "torch==2.11.*"
    assert requirement([(2, 15), (2, 11), (2, 13), (2, 12), (2, 14)]) == "torch>=2.11,<2.16"
    assert requirement([(2, 11), (2, 15), (2, 13)]) == "torch>=2.11,<2.16,!=2.12.*,!=2.14.*"


def test_both_ways_in_which_torch_looks_for_a_backend_lead_to_it(unpacked):
    entries = configparser.ConfigParser()
    entries.read_string(information(unpacked, "entry_points.txt"))
    assert {name: dict(entries[name]) for name in entries.sections()} == {
        "console_scripts": {
            "gtopk-allreduce": "gtopk_programs:allreduce",
            "gtopk-info": "gtopk_programs:info",
            "gtopk-pingpong": "gtopk_programs:pingpong",
        },
        "torch.backends": {"gtopk": "gtopk.core._autoload:register"},
        "torch.distributed.backends": {"gtopk": "gtopk.core._autoload:register"},
    }


def test_wheel_libraries_find_each_other_not_the_build_machine(unpacked):
    package = unpacked / "gtopk"
    core = package / f"{CORE}.so"
    for library in [*libraries(unpacked), core]:
        # The programs, which load no UCX beforehand, find it by way of the core.
        way = "$ORIGIN:$ORIGIN/../libucx/lib" if library == core else "$ORIGIN"
        assert dynamic(library, "R(?:UN)?PATH") == [way], library.name
        needed = needs(library)
        if library == core:
            assert needed >= UCX
        else:  # Python loads torch, and the process provides Python's symbols
            assert needed >= TORCH | {CORE}, library.name
            needed -= TORCH
        assert needed - {CORE} <= UCX | PROMISED | BUNDLED, library.name
        for name in dynamic(library, "NEEDED"):
            if name.split(".so")[0] in BUNDLED | {CORE}:
                assert (package / name).is_file(), name
    for program in programs(unpacked):
        assert dynamic(program, "R(?:UN)?PATH") == ["$ORIGIN/../../gtopk:$ORIGIN/../../libucx/lib"]
        needed = needs(program)
        assert CORE in needed, program.name
        assert needed <= UCX | PROMISED | BUNDLED | {CORE}, program.name
    for file in [*(unpacked / "gtopk").iterdir(), *programs(unpacked)]:
        if file.is_file():
            assert str(ROOT).encode() not in file.read_bytes(), file.name


def test_the_core_is_in_it_once(unpacked):
    core = exported(unpacked / "gtopk" / f"{CORE}.so")
    assert "gtopk::Communicator::run" in core
    # What only the core has, such as its own copy of parts of fmt, is for nobody else.
    assert not [each for each in core if each.startswith(("fmt::", "std::", "spdlog::"))]
    for each in [*libraries(unpacked), *programs(unpacked)]:
        assert each.stat().st_size < 1.25 * 2**20, each.name


def test_it_has_the_kernels_which_need_no_driver_to_be_loaded(unpacked):
    kernels = unpacked / "gtopk" / f"{KERNELS}.so"
    assert exported(kernels) == {"gtopk_cuda_calls"}
    assert needs(kernels) <= PROMISED | {"libdl", "librt", "libpthread"}
    assert ctypes.CDLL(str(kernels)).gtopk_cuda_calls
    # torch alone brings no other name of it into the process.
    assert not [each for each in libraries(unpacked) if KERNELS in needs(each)]


def test_it_is_small(wheel):
    assert wheel.stat().st_size < 10 * 2**20


def test_the_platform_is_that_of_the_newest_symbol():
    assert manylinux({"GLIBC": (2, 34), "GLIBCXX": (3, 4, 30)}) == "manylinux_2_35"
    assert manylinux({"GLIBC": (2, 38), "GLIBCXX": (3, 4, 30)}) == "manylinux_2_38"
    assert manylinux({"GLIBC": (2, 17), "GLIBCXX": (3, 4, 20)}) == "manylinux_2_28"
    assert manylinux({"GLIBC": (2, 38), "GLIBCXX": (3, 4, 99)}) is None


def test_symbols_of_all_its_libraries_count(wheel):
    newest = wanted(wheel)
    assert newest["GLIBC"] >= (2, 14)
    assert newest["GLIBCXX"] >= (3, 4, 21)


@pytest.mark.skipif(machine.libc_ver() > ("glibc", "2.36"), reason="built on a newer system")
def test_red_hat_9_has_all_that_it_needs(wheel):
    newest = wanted(wheel)
    assert newest["GLIBC"] <= (2, 34)
    assert newest["GLIBCXX"] <= (3, 4, 29)
    assert platform(wheel).startswith("manylinux_2_34_")
