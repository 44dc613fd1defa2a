"""Units follow only from the parameters. No processes, no native code."""

from __future__ import annotations

import random

import pytest
import torch
from gtopk.state.units import Parameter, check_unit, default_unit, units_of


def parameters(*sizes: int, dtype: torch.dtype = torch.float32) -> list[Parameter]:
    return [Parameter(f"p{i}", (size,), dtype) for i, size in enumerate(sizes)]


def names(units) -> list[tuple[str, ...]]:
    return [unit.names for unit in units]


def test_units_hold_consecutive_parameters_last_registered_first():
    units = units_of(parameters(10, 20, 30, 40), 70 * 4, min_numel=0)
    assert names(units) == [("p3", "p2"), ("p1", "p0")]


def test_a_parameter_beyond_the_limit_is_a_unit_of_its_own():
    units = units_of(parameters(10, 1000, 10), 100 * 4, min_numel=0)
    assert names(units) == [("p2",), ("p1",), ("p0",)]


def test_a_unit_is_filled_to_the_byte():
    assert len(units_of(parameters(10, 10), 80, min_numel=0)) == 1
    assert len(units_of(parameters(10, 10), 79, min_numel=0)) == 2


def test_parameters_under_min_numel_are_small_and_others_large():
    (unit,) = units_of(parameters(1023, 1024, 5), "model", min_numel=1024)
    assert [each.name for each in unit.large] == ["p1"]
    assert [each.name for each in unit.small] == ["p2", "p0"]
    assert (unit.selected_numel, unit.dense_numel) == (1024, 1028)


def test_layer_wise_units_select_once_and_carry_small_parameters():
    # In registration order: conv, batch norm's two, conv, batch norm's two.
    units = units_of(parameters(5000, 16, 16, 6000, 16, 16), "parameter", min_numel=1024)
    assert names(units) == [("p3", "p5", "p4"), ("p0", "p2", "p1")]


def test_layer_wise_leading_small_parameters_select_nothing():
    units = units_of(parameters(16, 5000), "parameter", min_numel=1024)
    assert names(units) == [("p1",), ("p0",)]
    assert units[1].selected_numel == 0


def test_units_are_of_one_type_and_types_do_not_cut_each_other():
    mixed = [
        Parameter("a", (10,), torch.float32),
        Parameter("b", (10,), torch.bfloat16),
        Parameter("c", (10,), torch.float32),
    ]
    units = units_of(mixed, "model", min_numel=0)
    assert names(units) == [("c", "a"), ("b",)]
    assert [unit.dtype for unit in units] == [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("unit", [1, 4096, 25 * 2**20, "parameter", "model"])
def test_every_parameter_is_in_exactly_one_unit(unit):
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    dtypes = [torch.float32, torch.bfloat16, torch.float64]
    for _ in range(50):
        some = [
            Parameter(f"p{i}", (rng.randrange(3000),), rng.choice(dtypes))
            for i in range(rng.randrange(40))
        ]
        units = units_of(some, unit, min_numel=rng.choice([0, 1, 1024, 10**9]))
        covered = [name for each in units for name in each.names]
        assert sorted(covered) == sorted(each.name for each in some), f"seed {seed}"
        assert all(each.names for each in units), f"seed {seed}"


@pytest.mark.parametrize("unit", [0, -1, 2.5, True, "layer", None])
def test_a_unit_that_makes_no_sense_is_refused(unit):
    with pytest.raises(ValueError, match="unit must be"):
        check_unit(unit)


def test_a_unit_is_of_one_device_and_alike_on_any():
    def parameters(*devices: str | None) -> list[Parameter]:
        return [
            Parameter(f"p{i}", (10,), torch.float32, torch.device(each) if each else None)
            for i, each in enumerate(devices)
        ]

    apart = units_of(parameters("meta", "cpu", "meta"), "model", 1)
    assert [unit.names for unit in apart] == [("p2", "p0"), ("p1",)]
    assert [unit.device for unit in apart] == [torch.device("meta"), torch.device("cpu")]
    (here,) = units_of(parameters(None, None), "model", 1)
    (there,) = units_of(parameters("meta", "meta"), "model", 1)
    assert here == there
    assert here.device == "cpu"


@pytest.mark.parametrize(
    ("elements", "sparse", "dense"),
    [
        (10, 25 * 2**20, 2**20),
        (2**21, 25 * 2**20, 2**20),
        (10**7, 25 * 2**20, 5 * 10**6),
        (10**8, 25 * 2**20, 25 * 2**20),
    ],
)
def test_dense_default_unit_is_a_bounded_eighth_of_the_model(elements, sparse, dense):
    model = parameters(elements // 2, elements - elements // 2)
    assert default_unit(model, sends_all=False) == sparse
    assert default_unit(model, sends_all=True) == dense
