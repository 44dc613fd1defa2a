"""Which saved SparseState can be loaded where. No processes, no group."""

from __future__ import annotations

import pickle

import pytest
import torch
from gtopk.state.auto import Choice
from torch import nn

import gtopk


def model(*, frozen: tuple[str, ...] = (), last: int = 40) -> nn.Sequential:
    made = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 48), nn.Linear(48, last))
    for name, parameter in made.named_parameters():
        parameter.requires_grad_(name not in frozen)
    return made


def state(of: nn.Module | None = None, *, seed: int | None = None, **arguments):
    made = gtopk.SparseState(of or model(), **{"density": 0.02, **arguments})
    if seed is not None:
        generator = torch.Generator().manual_seed(seed)
        for unit in made.units:
            for each in unit.large:
                made.residual(each.name).normal_(generator=generator)
    return made


def residuals(of: gtopk.SparseState) -> dict[str, torch.Tensor]:
    return of.state_dict()["residuals"]


def test_a_saved_state_is_a_copy_that_loads_back():
    first = state(seed=1)
    first.step = 7
    saved = first.state_dict()
    first.residual("0.weight").zero_()
    second = state(seed=2)
    assert second.load_state_dict(saved) == ([], [])
    assert second.step == 7
    assert all(
        torch.equal(residuals(second)[name], each) for name, each in saved["residuals"].items()
    )
    assert second.residual("0.weight").any()


@pytest.mark.parametrize(
    "changes",
    [
        {"density": 0.5},
        {"warmup": [("dense", 10), (0.1, 5)]},
        {"unit": "parameter"},
        {"unit": 20 * 1024},
        {"algorithm": "topk", "put_back": "merged"},
    ],
)
def test_another_configuration_loads_and_stays(changes):
    saved = state(seed=1, unit="model").state_dict()
    other = state(seed=2, **{"unit": "model", **changes})
    config = other.config
    for strict in (True, False):
        assert other.load_state_dict(saved, strict) == ([], [])
        assert other.config == config
        assert all(torch.equal(residuals(other)[n], each) for n, each in saved["residuals"].items())


def keeps(of: gtopk.SparseState) -> list[list[float]]:
    return [of.unit_selector_state(i).tolist() for i in range(len(of.units))]


def threshold_state(**arguments) -> gtopk.SparseState:
    """A state whose selector has kept something."""
    made = state(**{"select": "threshold", "unit": "parameter", **arguments})
    for i in range(len(made.units)):
        made.unit_selector_state(i)[0] = i + 0.5
    return made


def test_what_the_selector_kept_is_saved_and_loads_back():
    first = threshold_state()
    saved, kept = first.state_dict(), keeps(first)
    first.unit_selector_state(0).zero_()  # what was saved is a copy
    second = state(select="threshold", unit="parameter")
    second.load_state_dict(saved)
    assert keeps(second) == kept
    third = pickle.loads(pickle.dumps(second))
    assert keeps(third) == kept


@pytest.mark.parametrize("changes", [{"select": "exact"}, {"unit": "model"}])
def test_another_selector_or_other_units_start_anew(changes):
    saved = threshold_state().state_dict()
    other = threshold_state(**changes)
    assert other.load_state_dict(saved) == ([], [])
    assert not any(map(any, keeps(other)))


def test_state_saved_before_selectors_kept_state_loads():
    saved = threshold_state().state_dict()
    del saved["selector"]
    other = threshold_state()
    other.load_state_dict(saved)
    assert not any(map(any, keeps(other)))


def automatic_state(**arguments) -> gtopk.SparseState:
    """A state in which "auto" has chosen, for two densities."""
    made = state(**{"algorithm": "auto", "unit": "parameter", "select": "exact", **arguments})
    of_units = [Choice(i, 0.02, f"{'rs-ag' if i else 'topk'}", "cheap") for i in range(3)]
    saved = made.state_dict()
    saved["auto"]["choices"] = [[0, 0.5, "dense", "cheap"], *map(list, of_units)]
    made.load_state_dict(saved)
    return made


def test_what_auto_chose_is_saved_and_loads_back():
    first = automatic_state()
    assert [each.algorithm for each in first.choices] == ["dense", "topk", "rs-ag", "rs-ag"]
    second = state(algorithm="auto", unit="parameter")
    second.load_state_dict(first.state_dict())
    assert second.choices == first.choices
    assert [second.unit_algorithm(i) for i in range(3)] == ["topk", "rs-ag", "rs-ag"]
    third = pickle.loads(pickle.dumps(second))
    assert third.choices == first.choices


@pytest.mark.parametrize(
    "changes",
    [{"algorithm": "gtopk"}, {"unit": "model"}, {"wire": "bf16"}, {"semantics": "exact_sum"}],
)
def test_what_auto_chose_for_something_else_is_dropped(changes):
    saved = automatic_state().state_dict()
    other = state(**{"algorithm": "auto", "unit": "parameter", **changes})
    assert other.load_state_dict(saved) == ([], [])
    assert other.choices == []


def test_a_state_that_was_saved_before_auto_could_choose_loads():
    saved = automatic_state().state_dict()
    del saved["auto"]
    other = automatic_state()
    other.load_state_dict(saved)
    assert other.choices == []


def test_unfrozen_layer_loads_as_missing_frozen_as_unexpected():
    saved = state(model(frozen=("0.weight",)), seed=1).state_dict()
    other = state(model(frozen=("1.weight",)), seed=2)
    before = residuals(other)
    with pytest.raises(
        ValueError, match=r"'0\.weight' is \[64, 64\] torch.float32 large here and absent"
    ):
        other.load_state_dict(saved)
    assert torch.equal(residuals(other)["2.weight"], before["2.weight"])
    told = other.load_state_dict(saved, strict=False)
    assert told == (["0.weight"], ["1.weight"])
    assert (told.missing_keys, told.unexpected_keys) == told
    assert torch.equal(residuals(other)["0.weight"], before["0.weight"])
    assert torch.equal(residuals(other)["2.weight"], saved["residuals"]["2.weight"])


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: model(last=60), r"'2\.weight' is \[60, 48\] .* here and \[40, 48\] "),
        (
            lambda: model().double(),
            r"torch\.float64 large here and \[40, 48\] torch\.float32 large",
        ),
    ],
)
def test_a_parameter_of_another_shape_or_type_does_not_fit(other, message):
    saved = state(seed=1).state_dict()
    made = state(other(), seed=2)
    before = residuals(made)
    with pytest.raises(ValueError, match=message):
        made.load_state_dict(saved)
    told = made.load_state_dict(saved, strict=False)
    assert "2.weight" in told.missing_keys
    assert "2.weight" in told.unexpected_keys
    assert torch.equal(residuals(made)["2.weight"], before["2.weight"])


def test_a_small_parameter_that_had_a_residual_is_unexpected():
    saved = state(seed=1).state_dict()
    other = state(seed=2, min_numel=2000)
    with pytest.raises(
        ValueError, match=r"'2\.weight' is .* small here and .* large in the saved state"
    ):
        other.load_state_dict(saved)
    assert other.load_state_dict(saved, strict=False) == ([], ["2.weight"])


BROKEN = [
    *((lambda saved, key=key: saved.pop(key), f"it has no '{key}'") for key in
      ("format", "units", "step", "place", "residuals")),
    (lambda saved: saved.update(format=99), "format 99, not 1"),
    (lambda saved: saved.update(step="7"), "'step' must be a whole number"),
    (lambda saved: saved.update(step=-1), "'step' must be a whole number"),
    (lambda saved: saved.update(units=None), "'units' must be a list"),
    (lambda saved: saved.update(units=[{"dtype": "torch.float32"}]), "'units' must be a list"),
    (lambda saved: saved.update(units=[{**saved["units"][0], "large": ["a"]}]), "'units' must be"),
    (lambda saved: saved.update(place={"rank": 0}), "'place' must be None or hold"),
    (lambda saved: saved.update(place=3), "'place' must be None or hold"),
    (lambda saved: saved.update(residuals=[1]), "'residuals' must be a dict"),
    (lambda saved: saved["residuals"].update({"0.weight": 1.0}), "residual of '0.weight' must be"),
    (lambda saved: saved["residuals"].update({3: torch.zeros(1)}), "is not a string"),
    (
        lambda saved: saved["residuals"].update({"0.weight": torch.zeros(64, 64).to_sparse()}),
        "residual of '0.weight' must be a dense tensor",
    ),
    (lambda saved: saved.update(selector=[]), "'selector' must hold the name 'select' and a list"),
    (lambda saved: saved["selector"]["states"].pop(), "a state for each of 1 units, has 0"),
    (
        lambda saved: saved["selector"].update(states=[torch.zeros(5, dtype=torch.float64)]),
        "of unit 0 must be torch.float64 of shape \\[4\\]; given 'torch.float64 of shape \\[5\\]'",
    ),
    (
        lambda saved: saved["selector"].update(states=[torch.zeros(4)]),
        "of unit 0 must be torch.float64 of shape \\[4\\]; given 'torch.float32 of shape",
    ),
    (lambda saved: saved.update(auto=3), "'auto' must hold a dict 'asked' and a list 'choices'"),
    *(
        (lambda saved, broken=broken: saved["auto"].update(choices=[broken]), "a unit below 1")
        for broken in ([1, 0.5, "topk", ""], [0, 0.5, "best", ""], [0, "0.5", "topk", ""], [0], 7)
    ),
]  # fmt: skip


@pytest.mark.parametrize(("breaks", "message"), BROKEN, ids=[message for _, message in BROKEN])
def test_a_broken_dict_is_named_and_changes_nothing(breaks, message):
    saved = state(seed=1).state_dict()
    breaks(saved)
    made = state(seed=2)
    before = residuals(made)
    for strict in (True, False):
        with pytest.raises(ValueError, match=message):
            made.load_state_dict(saved, strict)
    assert made.step == 0
    assert all(torch.equal(residuals(made)[name], before[name]) for name in before)


def test_what_is_no_dict_is_refused():
    with pytest.raises(ValueError, match="it is not a dict"):
        state().load_state_dict([("format", 1)])


def test_missing_residual_of_a_unit_loads_only_with_strict_false():
    saved = state(seed=1).state_dict()
    del saved["residuals"]["1.weight"]
    made = state(seed=2)
    with pytest.raises(ValueError, match=r"none matches \['1\.weight'\]"):
        made.load_state_dict(saved)
    assert made.load_state_dict(saved, strict=False) == (["1.weight"], [])


def test_a_state_saved_by_torch_loads_with_weights_only(tmp_path):
    first = state(seed=1)
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second = state()
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert all(torch.equal(residuals(second)[n], each) for n, each in residuals(first).items())


def test_residual_and_momentum_follow_the_memory_format():
    def convolution(memory: torch.memory_format) -> nn.Module:
        return nn.Conv2d(8, 16, (3, 5)).to(memory_format=memory)

    formats = (torch.contiguous_format, torch.channels_last)
    for saved_as in formats:
        for loaded_as in formats:
            model = convolution(saved_as)
            first = state(model, momentum=0.9)
            values = torch.arange(16 * 8 * 3 * 5, dtype=torch.float32).view(16, 8, 3, 5)
            # As gradients arrive: in the order of the weight's memory.
            laid_out = torch.empty_like(model.weight).detach().copy_(values)
            in_memory = laid_out.as_strided((values.numel(),), (1,))
            first.unit_residual(0).copy_(in_memory)
            first.momenta.of_unit(0)[: values.numel()].copy_(2 * in_memory)
            bound = pickle.loads(pickle.dumps(first))
            bound.bind(convolution(loaded_as))
            loaded = state(convolution(loaded_as), momentum=0.9)
            loaded.load_state_dict(first.state_dict())
            flat = torch.empty_like(convolution(loaded_as).weight).detach().copy_(values)
            flat = flat.as_strided((values.numel(),), (1,))
            for each in (first, bound, loaded):
                assert torch.equal(each.residual("weight"), values)
                assert torch.equal(each.momentum("weight"), 2 * values)
            for each in (bound, loaded):
                assert torch.equal(each.unit_residual(0), flat)
                assert torch.equal(each.momenta.of_unit(0)[: values.numel()], 2 * flat)


def test_dimensions_of_one_element_make_no_other_order_of_memory():
    for of in (nn.Conv2d(64, 32, 1), nn.Conv2d(1, 512, 3)):
        plain = state(of).description()
        assert state(of.to(memory_format=torch.channels_last)).description() == plain
    other = state(nn.Conv2d(4, 32, 3).to(memory_format=torch.channels_last)).description()
    line = "'weight' [32, 4, 3, 3] torch.float32 with dimensions [0, 2, 3, 1] in memory selected"
    assert ("unit 0 holds", line) in other
