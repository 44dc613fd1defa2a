"""Every check that is written is run."""

from __future__ import annotations

import pytest

from helpers.checks import forgotten, unnamed_checks
from helpers.paths import TORCH

MODULES = sorted(TORCH.parent.rglob("*.py"))

SOURCE = """
def check_a(me): pass
def check_b(me): pass
def check_of_a_size(me, size): pass
def test_sizes(four): four.run(check_of_a_size, 3)
"""
TEST = "def test_on_four_ranks(four, check): four.run(check)\n"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_every_check_of_a_module_is_run(path):
    assert forgotten(path.read_text(encoding="utf-8")) == []


def test_checks_that_no_function_names_are_found():
    assert [each.name for each in unnamed_checks(SOURCE)] == ["check_a", "check_b"]


def test_a_list_of_checks_beside_them_runs_nothing():
    assert forgotten(SOURCE + "CHECKS = [check_a, check_b]\n") == ["check_a", "check_b"]


def test_a_test_that_takes_them_runs_them():
    assert forgotten(SOURCE + TEST) == []


def test_a_check_with_arguments_that_nobody_calls_is_forgotten():
    assert forgotten(SOURCE + TEST + "def check_c(me, size): pass\n") == ["check_c"]
