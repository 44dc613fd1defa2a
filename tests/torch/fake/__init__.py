"""Room: tests/torch. A simulated device (device.hpp), for ranks in processes of their own.

build() compiles it, once per source and torch; use() makes it torch's device "fake" in this
process, where GTOPK_CUDA_DRIVER and GTOPK_CUDA_KERNELS must name it.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import shutil
import subprocess
import types

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
SOURCES = [HERE / "device.cpp", HERE / "kernels.cpp", HERE / "torch_device.cpp"]
HEADERS = ["src/cuda", "src/gtopk/device", "src/gtopk/value", "src/numbers", "include/gtopk"]


def build(cache: pathlib.Path) -> str:
    """The path of the shared library, compiled if it is not in `cache`."""
    import torch

    headers = [path for folder in HEADERS for path in sorted((ROOT / folder).glob("*.hpp"))]
    headers += [HERE / "device.hpp", ROOT / "tests" / "support" / "host_executor.hpp"]
    texts = [path.read_bytes() for path in [*SOURCES, *headers]]
    name = hashlib.sha256(b"".join([torch.__version__.encode(), *texts])).hexdigest()[:16]
    library = cache / f"fake_device_{name}.so"
    if not library.exists():
        torch_dir = pathlib.Path(torch.__file__).parent
        compiler = [os.environ.get("CXX", "c++")]
        if shutil.which("ccache"):
            compiler.insert(0, "ccache")
        cache.mkdir(parents=True, exist_ok=True)
        made = library.with_suffix(f".{os.getpid()}")
        subprocess.run(
            [
                *compiler,
                *("-std=c++20", "-O1", "-ffp-contract=off", "-fPIC", "-shared", "-pthread"),
                *("-I", str(ROOT), "-I", str(ROOT / "include")),
                *("-isystem", str(torch_dir / "include")),
                *map(str, SOURCES),
                *("-o", str(made)),
                *("-L", str(torch_dir / "lib"), "-lc10", "-ltorch_cpu"),
            ],
            check=True,
        )
        made.rename(library)
    return str(library)


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
