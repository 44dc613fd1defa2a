"""Editors, mypy and help() show every argument of what makes a SparseState."""

from __future__ import annotations

import dataclasses
import inspect
import pydoc
import re
import typing
from collections.abc import Callable

import pytest
import torch
from gtopk.state.config import (
    Config,
    OptimizerArguments,
    ShardArguments,
    SparseArguments,
)

import gtopk

MAKERS = {
    gtopk.attach: SparseArguments,
    gtopk.SparseState: SparseArguments,
    gtopk.fsdp_hook: ShardArguments,
    gtopk.DistributedOptimizer: OptimizerArguments,
}
makers = pytest.mark.parametrize(("maker", "arguments"), MAKERS.items())
# Those of SparseState that are no part of its configuration.
OBJECTS = {"optimizer", "scaler"}


def test_the_typed_arguments_are_those_of_the_configuration() -> None:
    hints = typing.get_type_hints(Config)
    arguments = typing.get_type_hints(SparseArguments)
    assert {name: hints[name] for name in hints if name != "density"} == {
        name: each for name, each in arguments.items() if name not in OBJECTS
    }
    assert arguments.keys() - hints.keys() == OBJECTS
    assert SparseArguments.__optional_keys__ == arguments.keys()


@makers
def test_help_shows_every_argument_with_its_default(maker: Callable, arguments: type) -> None:
    shown = inspect.signature(maker).parameters
    assert all(each.kind != each.VAR_KEYWORD for each in shown.values())
    defaults = {each.name: each.default for each in dataclasses.fields(Config)}
    for name, annotation in typing.get_type_hints(arguments).items():
        assert shown[name].annotation == annotation
        assert shown[name].default == defaults.get(name)
    text = pydoc.plain(pydoc.render_doc(maker))
    assert all(re.search(rf"\b{name}: .* = ", text) for name in arguments.__optional_keys__)


@makers
def test_type_hints_name_the_typed_arguments(maker: Callable, arguments: type) -> None:
    function = maker.__init__ if isinstance(maker, type) else maker
    (variadic,) = typing.get_args(typing.get_type_hints(function)["arguments"])
    assert variadic is arguments


def test_the_docstring_of_the_state_explains_every_argument() -> None:
    text = inspect.getdoc(gtopk.SparseState)
    assert [n for n in SparseArguments.__optional_keys__ if f"\n    {n}: " not in text] == []


def test_an_unknown_argument_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'densities'"):
        gtopk.SparseState([("w", torch.nn.Parameter(torch.zeros(9)))], densities=0.1)


def test_settings_of_an_outer_optimizer_are_passed_by_name() -> None:
    shown = inspect.signature(gtopk.OuterOptimizer).parameters.values()
    positional = [each.name for each in shown if each.kind == each.POSITIONAL_OR_KEYWORD]
    assert positional == ["inner", "model", "preset", "group"]
