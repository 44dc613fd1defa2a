"""``gtopk.OuterOptimizer`` of a model on a device, which here is a fake one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import gtopk
from helpers.device_values import FAKE
from helpers.ranks import Rank, RankSet

pytestmark = pytest.mark.loopback

# The cosine transform of "demo" is a product of matrices, which this device does on the CPU.
PRESETS = ("localsgd", "diloco", "streaming-diloco", "sparseloco", "pulseloco", "demo")
STEPS = 14


def test_on_two_ranks(two_with_device: RankSet, check: Callable) -> None:
    two_with_device.run(check, timeout=90.0)


def trained(
    me: Rank, preset: str, device: str, state_device: str | None = None
) -> tuple[gtopk.OuterOptimizer, list[torch.Tensor]]:
    """After some steps: the optimizer, and this replica's and the shared parameters' values."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(20, 30), nn.BatchNorm1d(30), nn.Linear(30, 4)).to(device)
    inner = torch.optim.SGD(model.parameters(), lr=0.125)
    arguments = {} if preset == "demo" else {"inner_steps": 6}
    outer = gtopk.OuterOptimizer(
        inner, model, preset=preset, state_device=state_device, **arguments
    )
    generator = torch.Generator().manual_seed(me.rank)
    for _ in range(STEPS):
        for each in model.parameters():
            each.grad = torch.randn(each.shape, generator=generator).to(device)
        outer.step()
    shared = outer.shared_parameters().values()
    assert {each.device.type for each in shared} == {torch.device(device).type}
    return outer, [each.detach().cpu() for each in (*model.parameters(), *shared)]


def check_the_bits_are_those_of_the_cpu(me: Rank) -> None:
    for preset in PRESETS:
        _, expected = trained(me, preset, "cpu")
        for state_device in (None, "cpu"):
            _, found = trained(me, preset, FAKE, state_device)
            assert all(map(torch.equal, found, expected)), (preset, state_device)


def check_what_is_kept_is_where_it_was_asked_for(me: Rank) -> None:
    for state_device, where in ((None, FAKE), ("cpu", "cpu")):
        outer, _ = trained(me, "sparseloco", FAKE, state_device)
        saved = outer.state_dict()["gtopk"]
        for name in ("parameters", "error"):
            kept = {each.device.type for each in saved[name].values()}
            assert kept == {torch.device(where).type}, name


def check_a_state_goes_from_one_place_to_the_other(me: Rank) -> None:
    there, _ = trained(me, "sparseloco", FAKE)
    here, _ = trained(me, "sparseloco", FAKE, "cpu")
    here.load_state_dict(there.state_dict())
    for mine, its in zip(
        here.shared_parameters().values(), there.shared_parameters().values(), strict=True
    ):
        assert torch.equal(mine.cpu(), its.cpu())
