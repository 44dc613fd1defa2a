"""The check that stands in front of what reads torch's internals."""

from __future__ import annotations

import torch


def check_torch(module: str, first: tuple[int, int], last: tuple[int, int]) -> None:
    """Raise ImportError unless the loaded torch is one whose internals `module` knows."""
    major, minor = map(int, torch.__version__.split(".")[:2])
    if not first <= (major, minor) <= last:
        raise ImportError(
            f"gtopk: {module} reads what is private in torch, as it is from "
            f"{first[0]}.{first[1]} to {last[0]}.{last[1]}, and torch {torch.__version__} is "
            "loaded: install one of these versions, or a gtopk that knows this one"
        )
