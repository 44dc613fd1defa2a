"""What is private in torch is read in *_internals modules alone."""

from __future__ import annotations

import re

import pytest

from helpers.arrows import PACKAGE

# Frames, the collector, and what torch's own names call private. Types alone may come from _C.
PRIVATE = re.compile(
    r"sys\._getframe|gc\.get_objects|_execution_engine|torch\._C\.\w+\(|distributed_c10d\._"
    r"|\._get_backend\(|\._device_types|\._comm_hooks|\._get_fsdp_state|torch\._debug\w+"
)
# They make process groups that carry a backend into the native library and out of it.
CARRIERS = {"core/_native.py", "core/replicas.py", "core/_autoload.py"}
MODULES = {file.relative_to(PACKAGE).as_posix(): file.read_text() for file in PACKAGE.rglob("*.py")}
INTERNALS = [name for name in MODULES if name.endswith("_internals.py")]


def test_only_internals_modules_read_what_is_private_in_torch() -> None:
    readers = {name for name, text in MODULES.items() if PRIVATE.search(text)}
    assert readers - CARRIERS <= set(INTERNALS)


@pytest.mark.parametrize("name", INTERNALS)
def test_each_of_them_checks_the_version_of_torch(name: str) -> None:
    assert re.search(r"^check_torch\(__name__, \(\d+, \d+\), \(\d+, \d+\)\)$", MODULES[name], re.M)
    assert PRIVATE.search(MODULES[name])
