"""What a backend's own methods refuse: torch's functions check some of it before they call them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from helpers.collectives import usable
from helpers.ranks import Rank, RankSet

pytestmark = pytest.mark.loopback

Calls = dict[str, Callable[[], object]]


def refused(calls: Calls) -> None:
    """Every call raises ValueError with its words, and the group serves the next one."""
    for words, call in calls.items():
        with pytest.raises(ValueError, match=words):
            call()


def check_lists_of_another_form_than_the_collective_takes(me: Rank) -> None:
    world = dist.distributed_c10d._get_default_group()
    one, other = torch.ones(3), torch.ones(3, dtype=torch.float64)
    refused(
        {
            "all_gather needs one list of 4 output tensors": lambda: world.allgather(
                [[one] * 3], [one]
            ),
            "all_gather needs outputs of the input's dtype .*, given double": lambda: (
                world.allgather([[other] * 4], [one])
            ),
            "all_reduce takes one tensor, 2 given": lambda: world.allreduce([one, one.clone()]),
            "reduce_scatter takes one list of inputs, given 2": lambda: world.reduce_scatter(
                [one], [[one] * 4, [one] * 4]
            ),
        }
    )
    usable(me)


def check_a_list_on_the_root_alone(me: Rank) -> None:
    world = dist.distributed_c10d._get_default_group()
    four = [torch.ones(3) for _ in range(4)]
    if me.rank == 0:
        refused(
            {
                "gather needs one list of tensors on the root, given 0": lambda: world.gather(
                    [], [torch.ones(3)], dist.GatherOptions()
                ),
                "scatter needs one list of tensors on the root, given 2": lambda: world.scatter(
                    [torch.ones(3)], [four, four], dist.ScatterOptions()
                ),
            }
        )
    else:
        refused(
            {
                "gather takes a list of tensors only on the root": lambda: world.gather(
                    [four], [torch.ones(3)], dist.GatherOptions()
                ),
                "scatter takes a list of tensors only on the root": lambda: world.scatter(
                    [torch.ones(3)], [four], dist.ScatterOptions()
                ),
            }
        )
    usable(me)


def check_tensors_that_cannot_be_cut_into_rows(me: Rank) -> None:
    world = dist.distributed_c10d._get_default_group()
    scalar, four = torch.tensor(1.0), torch.ones(4)
    refused(
        {
            "all_to_all_single needs an input of at least one dimension": lambda: (
                dist.all_to_all_single(four, scalar)
            ),
            "all_to_all_single needs an output of at least one dimension": lambda: (
                dist.all_to_all_single(scalar, four)
            ),
            "all_to_all_single needs tensors of one dtype, given float and double": lambda: (
                world.alltoall_base(four.double(), four, [], [])
            ),
        }
    )
    usable(me)


def test_on_four_ranks(four: RankSet, check) -> None:
    four.run(check)
