"""Room: tests/torch. GTOPK_SECRET under torch: it does not protect torch's store, and says so."""

from __future__ import annotations

import warnings

import pytest
import torch.distributed as dist
from ranks import Rank, RankSet

pytestmark = pytest.mark.loopback


def joined(me: Rank, name: str) -> None:
    store = dist.PrefixStore(name, me.store)
    dist.init_process_group("gtopk", store=store, rank=me.rank, world_size=me.size)


def check_an_invalid_secret_is_refused_before_ranks_meet(me: Rank) -> None:
    for variable, value, said in (
        ("GTOPK_SECRET", "short", "GTOPK_SECRET gives a secret of 5 bytes: expected at least 16"),
        ("GTOPK_SECRET_FILE", "/nowhere/secret", "is '/nowhere/secret', which cannot be read"),
    ):
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv(variable, value)
            with pytest.raises(dist.DistBackendError, match=said):
                joined(me, value)


def check_the_first_rank_warns_once_that_nothing_is_protected(me: Rank) -> None:
    with pytest.MonkeyPatch.context() as environment, warnings.catch_warnings(record=True) as told:
        environment.setenv("GTOPK_SECRET", "sixteen bytes or more")
        warnings.simplefilter("always")
        joined(me, "warned")
        dist.new_group()
    said = [str(each.message) for each in told if "SECRET" in str(each.message)]
    assert len(said) == (me.rank == 0)
    assert all("do not protect torch's store" in each for each in said)
    dist.barrier()
    dist.destroy_process_group()


def test_on_two_ranks(two_apart: RankSet, check) -> None:
    two_apart.run(check)
