"""Arguments are refused before anything is sent: there is no group here."""

from __future__ import annotations

import json
import typing

import numpy as np
import pytest
import torch
from gtopk.core import _native
from gtopk.state.config import Config
from torch import nn
from torch.distributed import ReduceOp

import gtopk
from helpers.paths import ROOT


def config(**changes) -> Config:
    values = {
        "density": 0.01,
        "density_bounds": (0.001, 0.1),
        "unit": "model",
        "algorithm": "gtopk",
        "semantics": "any",
        "select": "exact",
        "block": 4096,
        "put_back": "own",
        "wire": None,
        "warmup": (),
        "min_numel": 1024,
        "momentum": 0.0,
        "nesterov": False,
        "clip_norm": None,
        "clip": "model",
        "accumulate": "gradient",
    }
    return Config(**{**values, **changes})


def state(model: nn.Module | None = None, **arguments) -> gtopk.SparseState:
    model = model or nn.Linear(64, 64)
    return gtopk.SparseState(model.named_parameters(), **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "needs k >= 1 or a density in .*, seen neither"),
        ({"k": 1, "density": 0.1}, "takes k or a density, seen k = 1 and density = 0.1"),
        ({"k": 0}, "needs k >= 1, seen 0"),
        ({"k": -3}, "needs k >= 1, seen -3"),
        ({"k": True}, "k must be a whole number, given True"),
        ({"k": 1.5}, "k must be a whole number, given 1.5"),
        ({"density": 0.0}, r"needs a density in \(0, 1\], seen 0"),
        ({"density": 1.01}, "seen 1.01"),
        ({"density": float("nan")}, "given nan"),
        ({"density": "0.1"}, "density must be a number, given '0.1'"),
        ({"k": 1, "algorithm": "ring"}, "unknown algorithm 'ring'; available: gtopk, .*, auto"),
        ({"k": 1, "algorithm": 5}, "algorithm must be a string, given 5"),
        ({"k": 1, "wire": 5}, "wire must be a string, given 5"),
        ({"k": 1, "block": 1.5}, "block must be a whole number, given 1.5"),
        ({"k": 1, "block": 64}, "block = 64 needs select 'block', seen 'exact'"),
        ({"k": 1, "select": "all"}, "unknown selector 'all'; available: exact, "),
        (
            {"k": 1, "semantics": "exact"},
            "unknown semantics 'exact'; available: dense, exact_sum, ",
        ),
        ({"k": 1, "put_back": "none"}, "unknown put_back 'none'; available: own, merged"),
        ({"k": 1, "wire": "int4"}, "unknown wire 'int4'; available: raw, "),
        ({"k": 1, "op": ReduceOp.MAX}, "op must be ReduceOp.SUM or ReduceOp.AVG"),
        ({"k": 1, "mean": "all"}, "unknown mean 'all'; available: ranks, contributors"),
        ({"k": 1, "mean": "contributors"}, "a mean over contributors needs ReduceOp AVG, seen SUM"),
        ({"k": 1, "residual": torch.zeros(9)}, r"shape \(8,\), given torch.float32 of shape \(9,"),
        ({"k": 1, "residual": torch.zeros(8).double()}, "must be torch.float32"),
        ({"k": 1, "state": torch.zeros(4)}, r"state must be .*float64 of shape \(4,\), given .*32"),
        ({"k": 1, "state": torch.zeros(5).double()}, r"of shape \(4,\), given .* of shape \(5,\)"),
        ({"k": 1, "state": torch.zeros(8).double()[::2]}, r"contiguous .* strides \(2,\)"),
        ({"k": 1, "state": [0.0] * 4}, "state must be a torch.Tensor, given list"),
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
        (torch.ones(1).expand(4), "overlapping elements"),
        (1.0, "tensor must be a torch.Tensor, given float"),
        ([1.0], r"tensor\[0\] must be a torch.Tensor, given float"),
        ([], "given an empty list"),
        ([torch.ones(4), torch.ones(4).double()], r"tensor\[1\] is torch.float64"),
        ([torch.ones(4), torch.ones(8)[::2]], r"contiguous, tensor\[1\] has .* strides \(2,\)"),
        (list(torch.ones(8).as_strided((2, 5), (3, 1))), r"tensor\[0\] and tensor\[1\] share"),
    ],
)
def test_bad_tensors_are_value_errors(tensor, message):
    with pytest.raises(ValueError, match=message):
        gtopk.sparse_all_reduce(tensor, k=1)


def memory() -> torch.Tensor:
    return torch.ones(64)


@pytest.mark.parametrize(
    "views",
    [
        lambda m: (m[:8], m[:8]),
        lambda m: (m[:8], m[7:15]),
        lambda m: (m[4:12], m[:8]),
        lambda m: (m[:8].view(2, 4), m[6:14].view(2, 4)),
        lambda m: (m[0:16:2], m[14:30:2]),
        lambda m: (m.view(8, 8)[:, 0], m.view(8, 8)[1]),
        lambda m: (m.view(8, 8)[:4, :4], m.view(8, 8)[3:7, 3:7]),
        lambda m: (m.view(torch.bfloat16)[14:22], m[:8]),
        lambda m: (torch.from_numpy(m.numpy())[:8], m[1:9]),
    ],
)
def test_residual_and_tensor_may_not_share_memory(views):
    tensor, residual = views(memory())
    with pytest.raises(ValueError, match="share memory"):
        gtopk.sparse_all_reduce(tensor, k=1, residual=residual)


@pytest.mark.parametrize(
    "views",
    [
        lambda m: (m[:8], m[8:16]),
        lambda m: (m[0:16:2], m[1:17:2]),
        lambda m: (m.view(8, 8)[:, :4], m.view(8, 8)[:, 4:]),
        lambda m: (m.view(torch.bfloat16)[:8], m[4:12]),
        lambda m: (m[:0], m[:0]),
    ],
)
def test_residual_and_tensor_may_lie_side_by_side_in_one_memory(views):
    # The arguments are fine; only the group is missing.
    tensor, residual = views(memory())
    with pytest.raises(ValueError, match="process group has not been initialized"):
        gtopk.sparse_all_reduce(tensor, k=1, residual=residual)


@pytest.mark.parametrize("with_residual", [False, True])
def test_selector_state_in_tensor_or_residual_memory_is_refused(with_residual):
    memory = torch.zeros(12).double()
    arguments = {"state": memory[:4]}
    if with_residual:
        arguments["residual"] = memory[2:10]
    tensor = torch.ones(8).double() if with_residual else memory[3:11]
    with pytest.raises(ValueError, match="state must not share memory with tensor or residual"):
        gtopk.sparse_all_reduce(tensor, k=1, **arguments)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_residual_of_a_half_type_is_float32(dtype):
    tensor = torch.ones(8, dtype=dtype)
    with pytest.raises(ValueError, match=r"must be torch\.float32"):
        gtopk.sparse_all_reduce(tensor, k=1, residual=torch.zeros(8, dtype=dtype))


def test_a_state_holds_its_algorithm_to_its_semantics():
    assert state(algorithm="auto", semantics="exact_sum").choices == []
    state(algorithm="auto", semantics="dense")
    state(algorithm="topk", semantics="exact_sum")
    with pytest.raises(ValueError, match="'exact_sum' rules out algorithm 'gtopk'"):
        state(algorithm="gtopk", semantics="exact_sum")
    with pytest.raises(ValueError, match="unknown semantics 'all'"):
        state(algorithm="auto", semantics="all")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"d": 0, "k": 1}, "d must be a whole number, 1 or more, given 0"),
        ({"d": 100}, "needs k >= 1 or a density in .*, seen neither"),
        ({"d": 100, "k": 1, "semantics": "all"}, "unknown semantics 'all'"),
        ({"d": 100, "k": 1, "dtype": torch.int32}, "gtopk: dtype must be one of float32"),
    ],
)
def test_bad_arguments_of_plan_are_value_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        gtopk.plan(**arguments)


def test_meta_tensor_is_refused_with_its_device_named():
    with pytest.raises(NotImplementedError, match="on the CPU or a CUDA device, given one on meta"):
        gtopk.sparse_all_reduce(torch.ones(8, device="meta"), k=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"density": 2}, "density"),
        ({"density": "adapted"}, r"a number in \(0, 1\] or 'adaptive', given 'adapted'"),
        ({"density": "dense"}, r"given 'dense': use algorithm='dense', or \('dense', steps\) in"),
        ({"density": "adaptive", "algorithm": "sketch"}, "'sketch' has no prediction; .*: gtopk, "),
        ({"density": "adaptive", "unit": "model"}, "given unit='model': use unit='parameter'"),
        ({"density": "adaptive", "clip_norm": 1.0}, "clip='unit'"),
        ({"density_bounds": (0.1, 0.01)}, r"smallest and the largest .* given \(0.1, 0.01\)"),
        ({"density_bounds": 0.1}, "smallest and the largest"),
        ({"accumulate": "updates"}, "accumulate='updates' is unknown"),
        ({"accumulate": "update"}, "needs optimizer=, which has the learning rates"),
        ({"accumulate": "update", "optimizer": 0.1}, "a torch.optim.Optimizer, given float"),
        ({"optimizer": 0.1}, "optimizer= is only for accumulate='update'"),
        ({"unit": "layer"}, "unit must be"),
        ({"min_numel": -1}, "min_numel"),
        ({"scaler": object()}, "scaler must be a torch.amp.GradScaler, .* given object"),
        ({"warmup": [0.1]}, "warmup must be pairs"),
        ({"warmup": [(0.0, 5)]}, "warmup's density"),
        ({"warmup": [("sparse", 5)]}, r"in \(0, 1\] or 'dense', given 'sparse'"),
        ({"unit": [1]}, "unit must be"),
        ({"warmup": [(0.1, -5)]}, "steps must be"),
        ({"warmup": [(0.1, 2.5)]}, "steps must be"),
        ({"block": 64}, "block = 64 needs select 'block', seen 'exact'"),
        ({"clip": "unit"}, "clip='unit' needs clip_norm="),
        ({"select": "block", "block": 0}, "needs block >= 1, seen 0"),
        ({"wire": "4bit"}, "'gtopk' would select by index alone.*: topk, exact"),
        ({"wire": "2bit"}, "'gtopk' would select by index alone.*: topk, exact"),
        ({"wire": "sign", "algorithm": "rs-ag"}, "'sign'.*'rs-ag'.*: topk, exact"),
    ],
)
def test_bad_arguments_of_the_state_are_value_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        state(**arguments)


def test_a_state_of_no_parameters_is_refused():
    model = nn.Linear(4, 4).requires_grad_(False)
    with pytest.raises(ValueError, match="no parameter that requires a gradient"):
        state(model)


def test_two_parameters_of_one_name_are_refused():
    pairs = [("weight", nn.Parameter(torch.ones(4))), ("weight", nn.Parameter(torch.ones(4)))]
    with pytest.raises(ValueError, match="two parameters have the name 'weight'"):
        gtopk.SparseState(pairs)


def units_of(made: gtopk.SparseState) -> list[tuple[str, ...]]:
    return [unit.names for unit in made.units]


def test_a_module_and_a_dict_serve_as_named_parameters():
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    wanted = units_of(gtopk.SparseState(model.named_parameters()))
    assert units_of(gtopk.SparseState(model)) == wanted
    assert units_of(gtopk.SparseState(dict(model.named_parameters()))) == wanted


def test_tied_parameters_count_once_under_their_first_name():
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    model[1].weight = model[0].weight
    every = gtopk.SparseState(model.named_parameters(remove_duplicate=False))
    assert (
        units_of(every) == units_of(gtopk.SparseState(model)) == [("0.weight", "1.bias", "0.bias")]
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda model: model.parameters(), "given Parameter"),
        (lambda model: list(model.parameters()), "given Parameter"),
        (lambda model: model.weight, "given Parameter"),
        (lambda _: "weight", "given str"),
        (lambda _: None, "given NoneType"),
        (lambda _: ["ab"], "given str"),
        (lambda model: [(model.weight, "weight")], r"given \(Parameter, str\)"),
        (lambda model: model.named_modules(), r"given \(str, Linear\)"),
    ],
)
def test_sparse_state_of_other_than_named_parameters_is_refused(given, said):
    with pytest.raises(ValueError, match=rf"model\.named_parameters\(\).*{said}"):
        gtopk.SparseState(given(nn.Linear(64, 64)))


def test_numbers_of_numpy_are_numbers():
    made = state(
        density=np.float32(0.25),
        unit=np.int64(2**20),
        min_numel=np.int32(10),
        warmup=[(np.float16(0.5), np.int8(3))],
    )
    assert json.dumps(made.config.as_dict())
    assert (made.density, made.config.density) == (0.5, 0.25)
    with pytest.raises(ValueError, match="process group has not been initialized"):
        gtopk.sparse_all_reduce(torch.ones(8), k=np.int64(2))
    with pytest.raises(ValueError, match="process group has not been initialized"):
        gtopk.sparse_all_reduce(torch.ones(8), density=np.float32(0.25))


def public() -> list:
    members = [getattr(gtopk, name) for name in gtopk.__all__ if name != "__version__"]
    methods = [
        value.fget if isinstance(value, property) else value
        for name, value in vars(gtopk.SparseState).items()
        if name == "__init__" or not name.startswith("_")
    ]
    return [each for each in (*members, *methods) if callable(each)]


@pytest.mark.parametrize("function", public(), ids=lambda each: each.__qualname__)
def test_type_hints_of_public_names_can_be_read(function):
    hints = typing.get_type_hints(function)
    assert isinstance(function, type) or "return" in hints


def test_frozen_parameters_are_in_no_unit():
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    model[0].requires_grad_(False)
    assert {name for unit in state(model).units for name in unit.names} == {"1.weight", "1.bias"}


def test_parameters_of_eight_bits_cannot_be_in_a_state():
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.odd = nn.Parameter(torch.ones(4).to(torch.float8_e5m2))

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
    # Found by name among the base classes: torch.distributed.tensor takes a second to import.
    class DTensor(torch.Tensor):
        pass

    sharded = torch.zeros(8).as_subclass(DTensor).requires_grad_()
    with pytest.raises(ValueError, match="parameter 'p' is sharded by FSDP"):
        gtopk.SparseState([("p", sharded)])


# --- warm-up


def test_warmup_densities_run_in_order_before_the_final_density():
    warm = config(density=0.01, warmup=[(0.25, 2), (0.5, 0), (0.05, 3)])
    assert [warm.density_at(step) for step in range(7)] == [0.25, 0.25, *[0.05] * 3, 0.01, 0.01]


def test_without_warm_up_the_density_is_that_of_every_step():
    assert {config().density_at(step) for step in range(5)} == {0.01}


def test_a_phase_of_the_warm_up_may_be_dense():
    warm = config(density=0.01, warmup=[("dense", 2), (np.float32(0.25), np.int64(1))])
    assert [warm.density_at(step) for step in range(4)] == ["dense", "dense", 0.25, 0.01]


def test_a_density_that_is_set_holds_for_all_steps_to_come():
    made = state(warmup=[("dense", 5)])
    assert made.density == "dense"
    made.density = 0.5
    assert made.density == 0.5
    assert made.config.warmup == ()
    for wrong in (0, 1.5, "dense", None):
        with pytest.raises(ValueError, match="density must be a number"):
            made.density = wrong
    assert made.density == 0.5


# --- versions


def test_the_library_is_that_of_the_minor_version_exactly():
    files = ["_torch_2_11.so", "_torch_2_9.so", "_torch_2_12.so", "libfmt.so.9", "_torch_2_1x.so"]
    assert _native.library_for("2.11.0", files) == "_torch_2_11.so"
    assert _native.library_for("2.11.1+cu130", files) == "_torch_2_11.so"
    assert _native.library_for("2.12.0a0+git1", files) == "_torch_2_12.so"
    for unknown in ("2.1.0", "2.10.0", "2.13.0", "3.11.0"):
        with pytest.raises(ImportError, match=rf"torch {unknown}; .*for: 2\.9, 2\.11, 2\.12\. "):
            _native.library_for(unknown, files)


def test_the_package_says_its_version_and_its_names():
    assert (
        torch.__version__.split("+")[0].split(".")[:2]
        == _native.load().torch_version().split(".")[:2]
    )
    cmake = (ROOT / "CMakeLists.txt").read_text()
    assert f"project(gtopk VERSION {gtopk.__version__} " in cmake
    names = {"SparseState", "attach", "sparse_all_reduce", "sparse_hook", "stats"}
    assert names <= set(dir(gtopk))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        gtopk.nothing  # noqa: B018
