"""The wheel's requirements, for scikit-build-core: the torch versions of its libraries.

GTOPK_TORCH_HEADERS names these in the environment, as cmake/GtopkTorch.cmake reads it. Without it,
the wheel requires the torch that is installed where it is built.
"""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any


def dynamic_metadata(field: str, settings: Mapping[str, Any]) -> list[str]:
    """Return the dependencies: `also`, and torch."""
    if field != "dependencies":
        raise RuntimeError(f"torch_requirement gives dependencies, not {field}")
    headers = os.environ.get("GTOPK_TORCH_HEADERS", "")
    if headers:
        minors = [minor_of(pathlib.Path(each)) for each in headers.split(";")]
    else:
        major, minor = importlib.metadata.version("torch").split(".")[:2]
        minors = [(int(major), int(minor))]
    return [requirement(minors), *settings.get("also", [])]


def minor_of(include: pathlib.Path) -> tuple[int, int]:
    """Return the version of torch to which these headers belong."""
    text = (include / "torch/headeronly/version.h").read_text(encoding="utf-8")
    major, minor = re.findall(r"#define TORCH_VERSION_(?:MAJOR|MINOR) (\d+)", text)
    return int(major), int(minor)


def requirement(minors: Sequence[tuple[int, int]]) -> str:
    """Require exactly these minor versions, with any patch version."""
    minors = sorted(set(minors))
    if len(minors) == 1:
        return f"torch=={minors[0][0]}.{minors[0][1]}.*"
    if len({major for major, _ in minors}) > 1:
        raise RuntimeError(f"torch of several major versions: {minors}")
    major = minors[0][0]
    first, last = minors[0][1], minors[-1][1]
    gaps = [each for each in range(first, last) if (major, each) not in minors]
    without = "".join(f",!={major}.{gap}.*" for gap in gaps)
    return f"torch>={major}.{first},<{major}.{last + 1}{without}"
