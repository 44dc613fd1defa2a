"""DDP's options and usual ways of using it, with the hook."""

from __future__ import annotations

import gc
import weakref
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import gtopk
from helpers.ranks import Rank, RankSet
from helpers.training import Training, batch, flat, gloo, network, replicas_are_bitwise_equal

pytestmark = pytest.mark.loopback

ARGUMENTS = {"density": 0.05, "unit": 8 * 1024, "momentum": 0.9, "warmup": [("dense", 1)]}


class Checkpointed(nn.Module):
    """The same network, with parts recomputed in the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = network()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        middle = checkpoint(self.layers[:5], x, use_reentrant=False)
        return checkpoint(self.layers[5:], middle, use_reentrant=False)


def trained(
    me: Rank, passes: int, *, precision=None, zero=True, model=None, **options
) -> tuple[Training, gtopk.SparseState]:
    """Five steps of `passes` backwards, of which only the last exchanges gradients."""
    training = Training(me.rank, model=model, **options)
    state = gtopk.attach(training.ddp, **ARGUMENTS)
    training.optimizer = torch.optim.SGD(training.ddp.parameters(), lr=0.05)
    for _ in range(5):
        training.optimizer.zero_grad(set_to_none=zero)
        for micro in range(passes):
            with training.ddp.no_sync() if micro < passes - 1 else nullcontext():
                x, labels = batch(me.rank, training.at)
                with torch.autocast("cpu", dtype=precision, enabled=precision is not None):
                    y = training.ddp(x)
                nn.functional.cross_entropy(y.float(), labels).backward()
            training.at += 1
        training.optimizer.step()
    assert state.step == 5
    assert replicas_are_bitwise_equal(training.model)
    return training, state


def same(one: gtopk.SparseState, other: gtopk.SparseState) -> bool:
    """Whether residuals and momenta are equal, whatever the parameters' prefix."""
    return all(
        torch.equal(mine, theirs)
        for kind in ("residuals", "momenta")
        for mine, theirs in zip(
            one.state_dict()[kind].values(), other.state_dict()[kind].values(), strict=True
        )
    )


def check_no_option_of_ddp_changes_a_bit(me: Rank) -> None:
    # A static graph allows no first backward under no_sync(): torch's own assertion fails.
    views = [{"gradient_as_bucket_view": True}, {"gradient_as_bucket_view": True, "zero": False}]
    static = [{"static_graph": True}, {"static_graph": True, **views[0], "model": Checkpointed()}]
    others = [{"find_unused_parameters": True}, {"bucket_mb": 25}]
    for passes, cases in ((1, [*views, *static, *others]), (3, views)):
        expected, state = trained(me, passes)
        for options in cases:
            training, other = trained(me, passes, **options)
            assert torch.equal(flat(training.model), flat(expected.model)), (passes, options)
            assert same(state, other), (passes, options)


def check_autocast_leaves_residuals_in_single_precision(me: Rank) -> None:
    training, state = trained(me, 2, precision=torch.bfloat16)
    plain, _ = trained(me, 2)
    assert not torch.equal(flat(training.model), flat(plain.model))
    torch.testing.assert_close(flat(training.model), flat(plain.model), rtol=0.1, atol=0.05)
    residuals = state.state_dict()["residuals"].values()
    assert {each.dtype for each in residuals} == {torch.float32}
    # Residuals keep more than bfloat16's eight bits.
    assert any(not torch.equal(each, each.bfloat16().float()) for each in residuals)


def check_autocast_at_density_one_trains_as_over_gloo(me: Rank) -> None:
    sparse, plain = Training(me.rank), Training(me.rank, group=gloo())
    gtopk.attach(sparse.ddp, density=1.0, unit=8 * 1024)
    for training in (sparse, plain):
        for _ in range(5):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                training.step()
    torch.testing.assert_close(flat(sparse.model), flat(plain.model), rtol=1e-2, atol=1e-3)


def check_an_error_of_a_backward_keeps_no_ddp(me: Rank) -> None:
    """One that stays would be reached by the gradients of the next one of the same model."""
    model = network()

    def trains(ends: bool) -> weakref.ref:
        group = dist.new_group()
        ddp = DistributedDataParallel(model, process_group=group)
        gtopk.attach(ddp, **ARGUMENTS)
        for at in range(3):
            x, labels = batch(me.rank, at)
            nn.functional.cross_entropy(ddp(x), labels).backward()
        dist.destroy_process_group(group)
        if ends:
            with pytest.raises((RuntimeError, ValueError), match="destroyed"):
                nn.functional.cross_entropy(ddp(x), labels).backward()
        return weakref.ref(ddp)

    for ends in (False, True, False):
        gone = trains(ends)
        gc.collect()
        assert gone() is None, ends


def check_mixed_precision_is_refused_by_name(me: Rank) -> None:
    training = Training(me.rank)
    training.ddp.mixed_precision = object()  # torch creates one only with an accelerator
    with pytest.raises(NotImplementedError, match=r"mixed_precision=.*under torch\.autocast"):
        gtopk.attach(training.ddp, density=0.1)
    dist.barrier()


def check_delayed_parameters_are_refused_by_name(me: Rank) -> None:
    model = network()
    named = dict(model.named_parameters())
    delayed, *_, last = named
    ddp = nn.parallel.DistributedDataParallel(
        model,
        delay_all_reduce_named_params=[(delayed, named[delayed])],
        param_to_hook_all_reduce=named[last],
    )
    with pytest.raises(NotImplementedError, match=r"delay_all_reduce_named_params=.* differ"):
        gtopk.attach(ddp, density=0.1)
    left = [each for each in named.items() if each[0] != delayed]
    ddp.register_comm_hook(gtopk.SparseState(left, density=0.1), gtopk.sparse_hook)
    x, labels = batch(me.rank, 0)
    with pytest.raises(NotImplementedError, match=r"delay_all_reduce_named_params=.* differ"):
        nn.functional.cross_entropy(ddp(x), labels).backward()
    dist.barrier()


def check_a_ddp_over_another_backend_is_refused_at_once(me: Rank) -> None:
    ddp = nn.parallel.DistributedDataParallel(network(), process_group=gloo())
    with pytest.raises(ValueError, match=r"backend is '\S*gloo\S*', not gtopk"):
        gtopk.attach(ddp, density=0.1)
    assert not ddp._comm_hooks


def check_a_second_attach_says_to_keep_the_first(me: Rank) -> None:
    training = Training(me.rank)
    gtopk.attach(training.ddp, density=0.1)
    with pytest.raises(RuntimeError, match=r"gtopk\.sparse_hook: keep using the state that"):
        gtopk.attach(training.ddp, density=0.2)
    training.step()


def test_on_four_ranks(four: RankSet, check) -> None:
    four.run(check)
