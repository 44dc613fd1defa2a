"""Room: tests/torch. Arguments are refused before anything is sent: here there is no group."""

from __future__ import annotations

import pathlib
import re

import pytest
import tomllib
import torch
from gtopk.config import Config
from torch import nn
from torch.distributed import ReduceOp

import gtopk
from gtopk import _native

ROOT = pathlib.Path(__file__).resolve().parents[2]


def config(**changes) -> Config:
    values = {
        "density": 0.01,
        "unit": "model",
        "algorithm": "gtopk",
        "select": "exact",
        "put_back": "own",
        "wire": None,
        "warmup": (),
        "min_numel": 1024,
    }
    return Config(**{**values, **changes})


def state(model: nn.Module | None = None, **arguments) -> gtopk.SparseState:
    model = model or nn.Linear(64, 64)
    return gtopk.SparseState(model.named_parameters(), **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "exactly one of k and density"),
        ({"k": 1, "density": 0.1}, "exactly one of k and density"),
        ({"k": 0}, "k must be at least 1, given 0"),
        ({"k": -3}, "k must be at least 1, given -3"),
        ({"k": True}, "k must be at least 1"),
        ({"k": 1.5}, "k must be a whole number, given 1.5"),
        ({"density": 0.0}, r"density must be a number in \(0, 1\], given 0.0"),
        ({"density": 1.01}, "given 1.01"),
        ({"density": float("nan")}, "given nan"),
        ({"density": "0.1"}, "given '0.1'"),
        ({"k": 1, "algorithm": "ring"}, r"algorithm='ring' is unknown; there are: 'gtopk', "),
        ({"k": 1, "select": "all"}, "select='all' is unknown"),
        ({"k": 1, "put_back": "none"}, "put_back='none' is unknown; there are: 'own', 'merged'"),
        ({"k": 1, "wire": "int4"}, "wire='int4' is unknown"),
        ({"k": 1, "op": ReduceOp.MAX}, "op must be ReduceOp.SUM or ReduceOp.AVG"),
        ({"k": 1, "residual": torch.zeros(9)}, r"shape \(8,\), given torch.float32 of shape \(9,"),
        ({"k": 1, "residual": torch.zeros(8).double()}, "must be torch.float32"),
        ({"k": 1, "residual": [0.0] * 8}, "residual must be a torch.Tensor, given list"),
    ],
)
def test_bad_arguments_of_sparse_all_reduce_are_value_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        gtopk.sparse_all_reduce(torch.ones(8), **arguments)


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (torch.ones(4, dtype=torch.int64), "given torch.int64"),
        (torch.ones(4, dtype=torch.complex64), "given torch.complex64"),
        (torch.ones(4).to_sparse(), "must be dense, given layout torch.sparse_coo"),
        (torch.ones(1).expand(4), "several elements in one place"),
        ([1.0], "tensor must be a torch.Tensor, given list"),
    ],
)
def test_bad_tensors_are_value_errors(tensor, message):
    with pytest.raises(ValueError, match=message):
        gtopk.sparse_all_reduce(tensor, k=1)


def test_residual_and_tensor_may_not_be_one():
    tensor = torch.ones(8)
    with pytest.raises(ValueError, match="share memory"):
        gtopk.sparse_all_reduce(tensor, k=1, residual=tensor)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_residual_of_a_half_type_is_float32(dtype):
    tensor = torch.ones(8, dtype=dtype)
    with pytest.raises(ValueError, match=r"must be torch\.float32"):
        gtopk.sparse_all_reduce(tensor, k=1, residual=torch.zeros(8, dtype=dtype))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("algorithm", each) for each in ("exact", "rs-ag", "sketch", "auto")),
        *(("select", each) for each in ("gaussian", "sampled", "threshold")),
        *(("wire", each) for each in ("bf16", "fp16")),
    ],
)
def test_what_the_contract_names_and_is_not_there_raises_an_error_that_names_it(name, value):
    message = re.escape(f"{name}='{value}' is not there yet")
    with pytest.raises(NotImplementedError, match=message):
        gtopk.sparse_all_reduce(torch.ones(8), k=1, **{name: value})
    with pytest.raises(NotImplementedError, match=message):
        state(**{name: value})


def test_a_tensor_elsewhere_than_on_the_cpu_gets_an_error_that_says_so():
    with pytest.raises(NotImplementedError, match=r"on meta.*CUDA tensors are not there yet"):
        gtopk.sparse_all_reduce(torch.ones(8, device="meta"), k=1)


@pytest.mark.parametrize(
    ("name", "value"),
    [("momentum", 0.9), ("clip_norm", 1.0), ("accumulate", "update"), ("scaler", object())],
)
def test_arguments_of_the_state_that_are_not_there_are_named(name, value):
    with pytest.raises(NotImplementedError, match=rf"SparseState\({name}="):
        state(**{name: value})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"density": 2}, "density"),
        ({"unit": "layer"}, "unit must be"),
        ({"min_numel": -1}, "min_numel"),
        ({"warmup": [0.1]}, "warmup must be pairs"),
        ({"warmup": [(0.0, 5)]}, "warmup's density"),
        ({"warmup": [(0.1, -5)]}, "steps must be"),
        ({"warmup": [(0.1, 2.5)]}, "steps must be"),
    ],
)
def test_bad_arguments_of_the_state_are_value_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        state(**arguments)


def test_a_state_of_no_parameters_is_refused():
    model = nn.Linear(4, 4).requires_grad_(False)
    with pytest.raises(ValueError, match="no parameter that requires a gradient"):
        state(model)


def test_frozen_parameters_are_in_no_unit():
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    model[0].requires_grad_(False)
    assert {name for unit in state(model).units for name in unit.names} == {"1.weight", "1.bias"}


def test_integer_parameters_cannot_be_in_a_state():
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.odd = nn.Parameter(torch.ones(4, dtype=torch.complex64))

    with pytest.raises(ValueError, match="parameter 'odd' must be one of"):
        state(Odd())


def test_fsdp_parameters_get_an_error_with_what_to_do():
    class FlatParameter(nn.Parameter):
        _is_flat_param = True

    model = nn.Module()
    model.flat = FlatParameter(torch.zeros(8))
    with pytest.raises(ValueError, match=r"sharded by FSDP.*DistributedDataParallel"):
        state(model)


def test_dtensor_parameters_get_an_error_with_what_to_do():
    # Found by name along the classes: torch.distributed.tensor takes a second to import.
    class DTensor(torch.Tensor):
        pass

    sharded = torch.zeros(8).as_subclass(DTensor).requires_grad_()
    with pytest.raises(ValueError, match="parameter 'p' is sharded by FSDP"):
        gtopk.SparseState([("p", sharded)])


# --- warm-up


def test_warm_up_densities_follow_each_other_and_the_density_comes_last():
    warm = config(density=0.01, warmup=[(0.25, 2), (0.5, 0), (0.05, 3)])
    assert [warm.density_at(step) for step in range(7)] == [0.25, 0.25, *[0.05] * 3, 0.01, 0.01]


def test_without_warm_up_the_density_is_that_of_every_step():
    assert {config().density_at(step) for step in range(5)} == {0.01}


def test_a_saved_configuration_that_differs_is_named_with_both_values():
    saved = config().as_dict()
    config().check_equal(saved)
    with pytest.raises(ValueError, match=r"density is 0.02 here and 0.01 there; unit is 7 here"):
        config(density=0.02, unit=7).check_equal(saved)


# --- versions


def test_another_minor_version_of_torch_is_an_error_that_says_both():
    _native.check_torch("2.11.0", "2.11.1+cu130")
    with pytest.raises(ImportError, match=r"built with torch 2.11.0, loaded is torch 2.12.0"):
        _native.check_torch("2.11.0", "2.12.0")


def test_the_package_says_its_version_and_its_names():
    pinned = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    major, minor = _native.load().torch_version.split(".")[:2]
    assert f"torch=={major}.{minor}.*" in pinned
    cmake = (ROOT / "CMakeLists.txt").read_text()
    assert f"project(gtopk VERSION {gtopk.__version__} " in cmake
    assert {"sparse_all_reduce", "SparseState", "sparse_hook", "stats"} <= set(dir(gtopk))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        gtopk.nothing  # noqa: B018
