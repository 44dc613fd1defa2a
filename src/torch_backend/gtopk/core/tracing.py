"""Handles torch.compile: functions that it must call untraced, and modules that it wraps."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

_P = ParamSpec("_P")
_T = TypeVar("_T")


def untraced(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Let torch.compile break its graph at each call of `function`.

    torch.compiler.disable does the same, but imports torch's compiler at once, which takes seconds.
    """
    disabled = torch._disable_dynamo(function)

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        compiles = "torch._dynamo" in sys.modules
        return (disabled if compiles else function)(*args, **kwargs)

    call._torchdynamo_disable = True  # type: ignore[attr-defined]
    call._torchdynamo_disable_msg = (  # type: ignore[attr-defined]
        "gtopk's sparse exchanges are not part of a graph"
    )
    return call


def uncompiled(module: Any) -> Any:
    """Return the module that torch.compile was called on, or the argument if it was not."""
    while type(module).__name__ == "OptimizedModule":  # compared by name: see untraced()
        module = module._orig_mod
    return module
