"""A simulated device (device.hpp), for ranks in processes of their own.

build() compiles it, what knows torch once for each version; use() makes it torch's device "fake"
in this process, where GTOPK_CUDA_DRIVER and GTOPK_CUDA_KERNELS must name it.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import shutil
import subprocess
import types
from collections.abc import Sequence

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
SOURCES = [HERE / "device.cpp", HERE / "driver.cpp", HERE / "kernels.cpp"]  # for every torch
TORCH_SOURCES = [HERE / "torch_device.cpp"]
HEADERS = ["src/cuda", "src/gtopk/device", "src/gtopk/select", "src/gtopk/value"]
HEADERS += ["src/numbers", "include/gtopk"]
COMPILER = [os.environ.get("CXX", "c++")]
FLAGS = ["-std=c++20", "-O1", "-ffp-contract=off", "-fPIC", "-pthread"]

# An object's name for now, its name, and the process that compiles it, if any.
_Started = tuple[pathlib.Path, pathlib.Path, "subprocess.Popen[bytes] | None"]


def build(cache: pathlib.Path) -> str:
    """The path of the shared library; compiles what of it is not in `cache`, side by side."""
    import torch

    torch_dir = pathlib.Path(torch.__file__).parent
    version = torch.__version__.encode()
    started = [_compile(cache, each, b"") for each in SOURCES]
    torch_headers = ["-isystem", str(torch_dir / "include")]
    started += [_compile(cache, each, version, torch_headers) for each in TORCH_SOURCES]
    return _linked(cache, started, ["-L", str(torch_dir / "lib"), "-lc10", "-ltorch_cpu"])


def build_without_torch(cache: pathlib.Path) -> str:
    """The same for programs that know no torch: driver and kernels."""
    return _linked(cache, [_compile(cache, each, b"") for each in SOURCES], [])


def _linked(cache: pathlib.Path, started: Sequence[_Started], libraries: Sequence[str]) -> str:
    """The library of those objects, once they are compiled."""
    for _, _, running in started:
        if running is not None:
            running.wait()
    for made, item, running in started:
        if running is not None:
            if running.returncode != 0:
                raise subprocess.CalledProcessError(running.returncode, running.args)
            made.rename(item)
    objects = [item for _, item, _ in started]
    names = "".join(item.name for item in objects).encode()
    library = cache / f"fake_device_{hashlib.sha256(names).hexdigest()[:16]}.so"
    if not library.exists():
        made = library.with_suffix(f".{os.getpid()}")
        link = [*COMPILER, "-shared", "-pthread", *map(str, objects), "-o", str(made), *libraries]
        subprocess.run(link, check=True)
        made.rename(library)
    return str(library)


def _compile(
    cache: pathlib.Path,
    source: pathlib.Path,
    torch_version: bytes,
    more: Sequence[str] = (),
) -> _Started:
    """Starts to compile a source unless its object is in `cache`."""
    headers = [path for folder in HEADERS for path in sorted((ROOT / folder).glob("*.hpp"))]
    headers += [HERE / "device.hpp", ROOT / "tests" / "support" / "host_executor.hpp"]
    texts = [path.read_bytes() for path in [source, *headers]]
    key = hashlib.sha256(b"".join([torch_version, *texts])).hexdigest()[:16]
    item = cache / f"{source.stem}_{key}.o"
    made = item.with_suffix(f".{os.getpid()}.o")
    if item.exists():
        return made, item, None
    cache.mkdir(parents=True, exist_ok=True)
    command = ["ccache"] if shutil.which("ccache") else []
    command += [*COMPILER, *FLAGS, "-I", str(ROOT), "-I", str(ROOT / "include"), *more]
    return made, item, subprocess.Popen([*command, "-c", str(source), "-o", str(made)])


def use() -> None:
    """Loads it, and gives torch the functions of a device module."""
    import torch

    torch.ops.load_library(os.environ["GTOPK_CUDA_DRIVER"])
    module = types.ModuleType("torch.fake")
    module.is_available = lambda: True
    module.is_initialized = lambda: True
    module._is_in_bad_fork = lambda: False
    module._lazy_init = lambda: None
    module.device_count = lambda: 1
    module.current_device = lambda: 0
    module.set_device = lambda device: None
    # FSDP2's: streams and events are torch's own, which are contexts, too.
    module.Stream = lambda device="fake", priority=0: torch.Stream(device, priority=priority)
    module.Event = lambda **options: torch.Event("fake", **options)
    module.current_stream = lambda device=None: torch.accelerator.current_stream("fake")
    module.stream = lambda stream: stream
    torch._register_device_module("fake", module)
