"""``gtopk.fsdp_hook`` where replicas use different modules."""

from __future__ import annotations

import os
import re
import signal
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from gtopk.core.groups import backend_of
from torch import nn

from helpers.fsdp import Training
from helpers.fsdp_parts import CASES, Beside, grad_scaler
from helpers.parallel import batch
from helpers.ranks import Rank, RankError, RankSet

pytestmark = pytest.mark.loopback


class Chooses(nn.Sequential):
    """Uses the layers that it is told; Training makes FSDP modules of the third and the fourth."""

    used: frozenset[int] = frozenset((2, 3))

    def __init__(self) -> None:
        torch.manual_seed(7)
        first, *others = (nn.Linear(*each) for each in ((24, 30), (30, 30), (30, 30), (30, 5)))
        super().__init__(first, nn.ReLU(), *others)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self):
            if number not in (2, 3) or number in self.used:
                x = layer(x)
        return x


# Of the first replica, and of the second, in one backward after the other.
RUNS = [
    [
        ((2, 3), (2, 3)),
        ((2, 3), (3,)),
        ((2,), (3,)),
        ((), (2,)),
        ((3,), (3,)),
        ((), ()),
        ((3,), ()),
    ],
    [((2,), (3,)), ((3,), (2,)), ((2, 3), ()), ((), ()), ((2, 3), (2, 3))],
]


def check_shards_match_ddp_with_find_unused_parameters(me: Rank) -> None:
    """What no replica used goes back into a residual, and leaves its .grad alone."""
    for number, (name, case) in enumerate(CASES.items()):
        case = dict(case)
        if case.pop("scaler", False):
            case["scaler"] = grad_scaler()
        beside = Beside(me, model=Chooses(), fsdp={"find_unused_modules": True}, **case)
        model = beside.training.model
        for at, used in enumerate(RUNS[number % 2]):
            beside.training.optimizer.zero_grad()
            model.used = frozenset(used[me.rank // 2])
            loss = model(batch(me.rank, at)).square().mean()
            # Units are numbered from the last module on.
            unused = [{2: 1, 3: 0}[each] for each in {2, 3} - {*used[0], *used[1]}]
            beside.backward(loss, unused)
            beside.check()
            for each in (2, 3):
                nobody = each not in used[0] and each not in used[1]
                assert (model[each].weight.grad is None) == nobody, (name, used)
            beside.step()
        assert beside.training.replicas_are_bitwise_equal(), name


def check_a_later_first_replica_has_its_order(me: Rank) -> None:
    """That of the first backward on the first replica: the third module before the fourth."""
    training = Training(me, model=Chooses(), density=0.1, find_unused_modules=True)
    training.model.used = frozenset((2, 3) if me.rank < 2 else ())
    orders = []
    for _ in range(3):
        training.step()
        orders.append(training.state.backward.source._order)
        training.model.used = frozenset((2, 3))
    assert orders == [[0, 1, 2]] * 3
    assert training.replicas_are_bitwise_equal()


def check_without_the_argument_every_rank_gets_an_error(me: Rank) -> None:
    """At once, or at the time-out where a replica has fewer modules than the other."""
    for used in (((2, 3), (3,)), ((2,), (3,)), ((), (2,))):
        training = Training(me, model=Chooses(), density=0.1)
        training.step()
        training.model.used = frozenset(used[me.rank // 2])
        backend_of(training.replicas).set_timeout(timedelta(seconds=3))
        with pytest.raises((ValueError, RuntimeError), match="find_unused_modules=True"):
            training.step()
        assert training.state.step == 1
        dist.barrier()


def check_replicas_agree_on_the_argument(me: Rank) -> None:
    with pytest.raises(ValueError, match=r"find_unused_modules is (True|False) here and"):
        Training(me, density=0.1, find_unused_modules=me.rank < 2)
    dist.barrier()


def check_hooks_of_parameters_are_refused(me: Rank) -> None:
    training = Training(me, density=0.1, find_unused_modules=True)
    for parameter in training.model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: None)
    with pytest.raises(NotImplementedError, match=r"has hooks that run .* find_unused_modules="):
        training.backward()
    dist.barrier()


def test_on_four_ranks(four: RankSet, check) -> None:
    four.run(check)


def killed(me: Rank) -> None:
    """The second replica, after a step."""
    training = Training(me, model=Chooses(), density=0.1)
    training.step()
    backend_of(training.replicas).set_timeout(timedelta(seconds=20))
    dist.barrier()
    if me.rank >= 2:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(dist.DistBackendError) as raised:
        training.step()
    assert "find_unused_modules" not in str(raised.value)


def test_killed_replica_is_not_mistaken_for_module_mismatch() -> None:
    with RankSet(4) as ranks, pytest.raises(RankError) as raised:
        ranks.run(killed)
    assert re.findall(r"--- rank (\d): ended with code -9|--- rank", str(raised.value)) == [
        "2",
        "3",
    ]
