"""What gtopk reads of torch's internals is there, and means what it meant."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from gtopk.core import torch_internals
from gtopk.core._native import check_torch
from gtopk.training import ddp_internals, fsdp_internals
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import gtopk
from helpers.ranks import Rank, RankSet

pytestmark = pytest.mark.loopback


def test_another_version_of_torch_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    check_torch("here", (2, 11), (2, 15))
    monkeypatch.setattr(torch, "__version__", "2.16.1+cpu")
    with pytest.raises(ImportError, match=r"here relies .* 2\.11 to 2\.15, but torch 2\.16\.1"):
        check_torch("here", (2, 11), (2, 15))


def test_what_fsdp_reduced_in_an_unknown_layout_is_refused() -> None:
    check = fsdp_internals.check_reduced
    check(torch.ones(4), "weight", 4, torch.float32)
    with pytest.raises(NotImplementedError, match="reduced 4 elements for the module of 'weight'"):
        check(torch.ones(4), "weight", 3, torch.float32)
    with pytest.raises(ValueError, match=r"of 'weight' as torch\.float64, but its residuals ar"):
        check(torch.ones(4).double(), "weight", 4, torch.float32)
    with pytest.raises(NotImplementedError, match="modules of which only some parameters get a gr"):
        fsdp_internals.known(None)


def in_backward(of: Callable[[torch.Tensor], torch.Tensor], do: Callable[[], object]) -> None:
    """Do this when the gradient of a parameter arrives."""
    parameter = nn.Parameter(torch.ones(3))
    parameter.register_post_accumulate_grad_hook(lambda _: do())
    of(parameter).sum().backward()


def test_a_backward_has_a_number_of_its_own() -> None:
    numbers: list[int | None] = []
    for _ in range(2):
        in_backward(torch.sin, lambda: numbers.append(torch_internals.current_backward()))
    assert None not in numbers
    assert len(set(numbers)) == 2
    assert torch_internals.current_backward() is None


def test_what_waits_for_the_end_of_a_backward_is_called_in_order() -> None:
    called: list[str] = []

    def wait() -> None:
        for name in ("first", "second"):
            torch_internals.at_end_of_backward(lambda name=name: called.append(name))
        torch_internals.at_end_of_backward(
            lambda: torch_internals.at_end_of_backward(lambda: called.append("last"))
        )
        called.append("now")

    in_backward(torch.sin, wait)
    assert called == ["now", "first", "second", "last"]


def test_reentrant_checkpointing_is_seen_on_the_stack() -> None:
    seen: list[bool] = []

    def see() -> None:
        seen.append(torch_internals.recomputes())

    in_backward(torch.sin, see)
    given = torch.ones(3, requires_grad=True)
    for reentrant in (True, False):

        def part(parameter: torch.Tensor, reentrant: bool = reentrant) -> torch.Tensor:
            # What is not passed in gets its gradient while the part is recomputed.
            return checkpoint(lambda x: x * parameter, given, use_reentrant=reentrant)

        in_backward(part, see)
    assert seen == [False, True, False]


def test_elements_in_one_place_are_seen() -> None:
    assert torch_internals.overlaps_itself(torch.zeros(1).expand(3))
    assert not torch_internals.overlaps_itself(torch.zeros(3))


def check_groups_tell_their_devices(me: Rank) -> None:
    group = torch_internals.default_group()
    assert group is dist.group.WORLD
    assert torch.device("cpu") in torch_internals.devices_of(group)
    backend = torch_internals.backend_on(group, torch.device("cpu"))
    assert isinstance(backend, gtopk.Backend)
    assert not torch_internals.is_outside(group, "this")
    assert not torch_internals.is_outside(None, "this")


def check_ddp_tells_its_hook(me: Rank) -> None:
    ddp = DistributedDataParallel(nn.Linear(4, 4))
    assert ddp_internals.hook_of(ddp) == ""
    state = gtopk.attach(ddp, density=0.5)
    assert ddp_internals.hook_of(ddp) == "sparse_hook"
    assert ddp_internals.ddps_around(state, ddp.module.weight) == [ddp]
    assert (ddp.mixed_precision, ddp._delay_all_reduce_params) == (None, [])
    assert ddp.parameters_to_ignore == set()
    assert not ddp._join_config.enable


def check_attach_searches_for_no_ddp(me: Rank) -> None:
    ddp = DistributedDataParallel(nn.Linear(4, 4))
    gtopk.attach(ddp, density=0.5)
    by_hand = DistributedDataParallel(nn.Linear(4, 4))
    state = gtopk.SparseState(by_hand.module, density=0.5)
    by_hand.register_comm_hook(state, gtopk.sparse_hook)
    searches: list[object] = []
    backward = sys.modules["gtopk.training.ddp_backward"]
    search = backward.ddps_around
    backward.ddps_around = lambda *arguments: searches.append(arguments) or search(*arguments)
    try:
        for each, wanted in ((ddp, 0), (by_hand, 1)):
            for _ in range(2):
                each(torch.ones(2, 4)).sum().backward()
            assert len(searches) == wanted
    finally:
        backward.ddps_around = search


def check_fsdp_tells_what_it_has_reduced(me: Rank) -> None:
    model = nn.Linear(4, 4)
    fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (me.size,)))
    ((module, group),) = fsdp_internals.sharded_modules(model)
    assert module is model
    assert [each.sharded_param for each in group.fsdp_params] == list(model.parameters())
    assert not fsdp_internals.defers(group)
    assert not fsdp_internals.has_hooks(group)
    found: list[tuple] = []
    module.set_all_reduce_hook(lambda output: found.append(fsdp_internals.reduction_of(output)))
    model(torch.ones(2, 4)).sum().backward()
    ((parameters, divisor),) = found
    assert parameters == group.fsdp_params
    assert divisor == 1
    assert not fsdp_internals.goes_on([group])


def test_on_one_rank(check: Callable[[Rank], None]) -> None:
    with RankSet(1) as one:
        one.run(check)
