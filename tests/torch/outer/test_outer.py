"""``gtopk.OuterOptimizer`` against the rule in numpy, bit for bit."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
import scipy.fft
import torch
from gtopk.training.outer_tiles import restored, transformed
from torch import nn

import gtopk
from helpers.outer import INNER, STEPS, Outer, inner_of, inner_step
from helpers.outer_reference import PRESETS, Replicas, Rule
from helpers.ranks import Rank, RankSet
from helpers.training import flat, network, replicas_are_bitwise_equal

pytestmark = pytest.mark.loopback


@functools.cache
def expected(ranks: int, rule: tuple, inner: int) -> tuple[list[torch.Tensor], Replicas]:
    """Each replica's parameters two steps after the second round, and what is shared."""
    models = [network() for _ in range(ranks)]
    replicas = Replicas(models, Rule(*rule), inner)
    inners = [None if replicas.rule.gradients else inner_of(model) for model in models]
    for step in range(2 * inner + 2):
        for rank in range(ranks):
            inner_step(models[rank], inners[rank], rank, step)
        replicas.after(step + 1)
    return [flat(model) for model in models], replicas


def check_bits(me: Rank, preset: str, overrides: dict) -> None:
    """Against the reference with the preset's rule and the overrides in it."""
    rule = dataclasses.replace(PRESETS[preset], **overrides)
    inner = 1 if rule.gradients else INNER * (1 + (PRESETS[preset].fragments > 1))
    models, replicas = expected(me.size, dataclasses.astuple(rule), inner)
    arguments = {} if rule.gradients else {"inner_steps": inner}
    outer = Outer(me.rank, preset=preset, **arguments, **overrides)
    outer.steps(2 * inner + 2)
    assert torch.equal(flat(outer.model), models[me.rank])
    wanted = torch.cat([torch.from_numpy(each).flatten() for each in replicas.shared])
    assert torch.equal(outer.shared(), wanted)
    saved = outer.optimizer.state_dict()["gtopk"]
    for kind, vectors in (
        ("velocity", replicas.velocity if rule.momentum else None),
        ("error", replicas.errors[me.rank] if rule.error_decay else None),
    ):
        assert bool(saved[kind]) == (vectors is not None), kind
        if vectors is not None:
            names = dict(outer.model.named_parameters())
            for name, other in zip(names, replicas.tensors(vectors), strict=True):
                assert torch.equal(saved[kind][name], torch.from_numpy(other)), (kind, name)


CASES = [
    ("localsgd", {}),
    ("diloco", {}),
    ("diloco", {"momentum": 0.8, "nesterov": False, "lr": 0.5, "decay": 0.01}),
    ("diloco", {"scale": 0.5, "sign": True, "lr": 0.001}),
    ("diloco", {"wire": "bf16", "error_decay": 1.0}),
    ("diloco", {"k": 64, "error_decay": 1.0, "momentum": 0.0, "nesterov": False}),
    ("diloco", {"mix": 0.25, "delay": 2}),
    ("streaming-diloco", {"delay": 0}),
    (
        "streaming-diloco",
        {"fragments": 2, "delay": 0, "mix": 0.0, "wire": None, "error_decay": 0.0},
    ),
    ("pulseloco", {}),
    ("pulseloco", {"mean": "contributors", "momentum": 0.0, "nesterov": False, "scale": 0.1}),
    ("demo", {"transform": "tiles"}),
    ("sparseloco", {"fragments": 1, "delay": 2, "mix": 0.5}),
    ("sparseloco", {"fragments": 3}),
    ("sparseloco", {}),
    ("sparseloco", {"wire": "sign", "mean": "participants", "error_decay": 0.5}),
    ("sparseloco", {"wire": None, "subtract": 0.5, "k": 16}),
    ("sparseloco", {"wire": "bf16", "momentum": 0.6, "lr": 0.7, "transform": None}),
    ("sparseloco", {"error_decay": 0.0}),
    ("sparseloco", {"clip": "median"}),
    ("sparseloco", {"clip": "median", "wire": "bf16", "mean": "participants", "fragments": 2}),
    ("pulseloco", {"clip": "median", "delay": 1}),
]


@pytest.mark.parametrize(("preset", "overrides"), CASES, ids=str)
def test_every_bit_is_that_of_the_rule(four: RankSet, preset: str, overrides: dict) -> None:
    four.run(check_bits, preset, overrides)


@pytest.mark.parametrize("preset", [each for each in PRESETS if each != "demo"])
def test_every_bit_is_that_of_the_rule_on_one_and_three_replicas(
    three: RankSet, one: RankSet, preset: str
) -> None:
    three.run(check_bits, preset, {})
    one.run(check_bits, preset, {})


def check_one_replica_trains_as_without(me: Rank) -> None:
    """Of which the mean is its own movement: to rounding, nothing has happened."""
    outer = Outer(me.rank, preset="diloco", momentum=0.0, lr=1.0)
    model = network()
    inner = inner_of(model)
    for step in range(STEPS):
        inner_step(model, inner, me.rank, step)
    outer.steps(STEPS)
    assert torch.allclose(flat(outer.model), flat(model), atol=1e-6)
    assert not torch.equal(flat(model), flat(network()))


def test_one_replica_trains_as_without(one: RankSet) -> None:
    one.run(check_one_replica_trains_as_without)


def check_each_part_of_the_rule_changes_what_it_should(me: Rank) -> None:
    """Two rounds: what depends on an error or a momentum shows from the second on."""
    arguments = {"preset": "sparseloco", "inner_steps": 2}
    for override, first in (
        ({"error_decay": 0.5}, False),
        ({"subtract": 0.5}, False),
        ({"momentum": 0.5}, True),
        ({"mean": "participants"}, True),
        ({"clip": "median"}, True),
        ({"sign": True, "lr": 1e-3}, True),
        ({"wire": "sign"}, True),
        ({"k": 32}, True),
        ({"scale": 2.0}, True),
        ({"decay": 0.1}, True),
        ({"lr": 0.5}, True),
        ({"transform": None}, True),
        ({"fragments": 2}, True),
        ({"delay": 1}, True),
        ({"mix": 0.5}, False),
    ):
        plain, other = Outer(me.rank, **arguments), Outer(me.rank, **arguments | override)
        for each in (plain, other):
            each.steps(2)
        # Plain momentum first adds to nothing.
        differs = not torch.equal(plain.shared(), other.shared())
        assert differs == (first and "momentum" not in override), override
        for each in (plain, other):
            each.steps(2)
        assert not torch.equal(plain.shared(), other.shared()), override
        shared = nn.ParameterList([nn.Parameter(other.shared())])
        assert replicas_are_bitwise_equal(shared), override


def check_contributors_alone_divide(me: Rank) -> None:
    """Each replica moves an entry of its own, and one that all move."""
    model = nn.Linear(64, 64, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    found = {}
    for mean in ("participants", "contributors"):
        with torch.no_grad():
            model.weight.zero_()
        inner = torch.optim.SGD(model.parameters(), lr=1.0)
        outer = gtopk.OuterOptimizer(
            inner, model, "sparseloco", inner_steps=1, mean=mean, wire=None, k=2
        )
        model.weight.grad = torch.zeros(64, 64)
        model.weight.grad[0, 0] = model.weight.grad[1, me.rank] = -8.0
        outer.step()
        found[mean] = model.weight.detach().clone()
    assert found["participants"][0, 0] == found["contributors"][0, 0] == 8
    assert (found["participants"][1, : me.size] == 8 / me.size).all()
    assert (found["contributors"][1, : me.size] == 8).all()


def check_coefficients_of_gradients_move_replicas_alike(me: Rank) -> None:
    """demo with its cosine transform: in the first step, by the sign of the largest of them."""
    outer = Outer(me.rank, preset="demo")
    model = network()
    before = outer.optimizer.shared_parameters()["0.weight"]
    mean = np.zeros((64, 24))
    lists = np.zeros((me.size, 64, 24))
    for rank in range(me.size):
        inner_step(model, None, rank, 0)
        coefficients = scipy.fft.dctn(model[0].weight.grad.double().numpy(), norm="ortho")
        first = np.argsort(-np.abs(coefficients), axis=None)[:32]
        lists[rank].flat[first] = coefficients.flat[first]
    mean = lists.sum(0) / np.maximum((lists != 0).sum(0), 1)
    moved = np.sign(scipy.fft.idctn(mean, norm="ortho"))
    outer.step()
    now = outer.optimizer.shared_parameters()["0.weight"]
    wanted = before.double().numpy() * (1 - 0.01 * 0.01) - 0.01 * moved
    assert np.isclose(now.double().numpy(), wanted, atol=1e-6).mean() > 0.99
    outer.steps(5)
    assert replicas_are_bitwise_equal(outer.model)
    assert not outer.optimizer.state_dict()["state"]  # the inner optimizer has not stepped


def test_a_tile_and_its_coefficients_are_each_others() -> None:
    tiles = torch.randn(3, 48, 64, generator=torch.Generator().manual_seed(1))
    coefficients = transformed(tiles)
    assert np.allclose(coefficients[1], scipy.fft.dctn(tiles[1].numpy(), norm="ortho"), atol=1e-4)
    assert torch.allclose(restored(coefficients), tiles, atol=1e-5)


def test_on_four_ranks(four: RankSet, check) -> None:
    four.run(check)
