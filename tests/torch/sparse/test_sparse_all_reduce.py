"""gtopk.sparse_all_reduce, bit for bit against the sequential reference."""

from __future__ import annotations

import functools
import itertools
import random

import pytest
import torch
import torch.distributed as dist
from gtopk.core.groups import backend_of
from gtopk.diagnostics.statistics import Statistics
from gtopk.ops.options import SparseOptions, algorithms
from gtopk.ops.sparse_all_reduce import ACCUMULATION
from torch.distributed import ReduceOp

import gtopk
from helpers import reference
from helpers.ranks import Rank, RankSet, works_on

pytestmark = pytest.mark.loopback

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
PUT_BACKS = ("own", "merged")
BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


@functools.cache
def groups() -> list[dist.ProcessGroup]:
    """Groups of the first P ranks, P = 1 to 4."""
    return [dist.new_group(list(range(ranks))) for ranks in range(1, 5)]


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    kind = BITS[a.dtype.itemsize]
    return a.dtype == b.dtype and torch.equal(a.contiguous().view(kind), b.contiguous().view(kind))


def drawn(seed: int, ranks: int, d: int, dtype: torch.dtype, kind: str) -> list[torch.Tensor]:
    """Every rank's gradient, from the seed, so every rank knows them all."""
    generator = torch.Generator().manual_seed(seed)
    every = torch.randn(ranks, d, generator=generator, dtype=torch.float64)
    if kind == "ties":
        every = every.mul(2).round()
    elif kind == "sparse":
        every = every * (torch.rand(ranks, d, generator=generator) < 0.1)
    elif kind == "tiny":
        every = every * 1e-41
    elif kind == "cancel":
        every = every[:1] * torch.tensor([[1.0], [-1.0], [1.0], [-1.0]])[:ranks]
    elif kind == "negative zeros":
        every = -(every * (torch.rand(ranks, d, generator=generator) < 0.3))
    return list(every.to(dtype))


def compare(me: Rank, ranks: int, **case) -> None:
    """Two calls in a row, so that the second meets the first one's residuals."""
    group = groups()[ranks - 1]  # created by all ranks, used by its members
    if me.rank >= ranks:
        return
    seed, d, dtype = case["seed"], case["d"], case["dtype"]
    options = {"k": case["k"], "algorithm": case["algorithm"], "put_back": case["put_back"]}
    average, mean = case["average"], case.get("mean", "ranks")
    wide = reference.accumulation(dtype)
    residual = torch.zeros(d, dtype=wide)
    expected_residuals = [torch.zeros(d, dtype=wide) for _ in range(ranks)]
    for step in range(2):
        gradients = drawn(2 * seed + step, ranks, d, dtype, case["kind"])
        expected = reference.sparse_all_reduce(
            gradients, expected_residuals, average=average, mean=mean, **options
        )
        tensor = gradients[me.rank].clone()
        gtopk.sparse_all_reduce(
            tensor,
            residual=residual,
            op=ReduceOp.AVG if average else ReduceOp.SUM,
            mean=mean,
            group=group,
            **options,
        )
        expected_residuals = expected.residuals
        assert same_bits(tensor, expected.tensor), (ranks, step, case)
        assert same_bits(residual, expected_residuals[me.rank]), (ranks, step, case)


def check_every_combination(me: Rank, ranks: int) -> None:
    for seed, (dtype, algorithm, put_back, average) in enumerate(
        itertools.product(DTYPES, reference.ALGORITHMS, PUT_BACKS, (False, True))
    ):
        compare(
            me,
            ranks,
            seed=seed,
            d=97,
            k=5,
            dtype=dtype,
            algorithm=algorithm,
            put_back=put_back,
            average=average,
            kind="normal",
        )


def check_means_over_contributors(me: Rank) -> None:
    kinds = ("normal", "ties", "sparse", "cancel")
    for seed, (ranks, dtype, algorithm, kind) in enumerate(
        itertools.product((1, 2, 3, 4), DTYPES, ("topk", "exact"), kinds)
    ):
        compare(
            me,
            ranks,
            seed=seed,
            d=97,
            k=20,
            dtype=dtype,
            algorithm=algorithm,
            put_back="own",
            average=True,
            mean="contributors",
            kind=kind,
        )


def check_counts_travel_with_merged_lists(me: Rank) -> None:
    """Of four ranks, whose second lists are those of two."""
    sent = {}
    for mean in ("ranks", "contributors"):
        tensor = torch.zeros(100)
        tensor[[0, 1 + me.rank % 2, 4 + me.rank // 2]] = torch.tensor([8.0, 4.0, 2.0])
        before = gtopk.stats()["bytes_sent"]
        gtopk.sparse_all_reduce(tensor, k=3, algorithm="topk", op=ReduceOp.AVG, mean=mean)
        sent[mean] = gtopk.stats()["bytes_sent"] - before
        whole = {"ranks": [8, 2, 2, 0, 1, 1], "contributors": [8, 4, 4, 0, 2, 2]}
        assert tensor[:6].tolist() == whole[mean], mean
    # A merged list has index 0 and 4 or 5 twice, and 1 and 2 once: 01 1 1 01.
    assert sent["contributors"] - sent["ranks"] == 1 + 1


def check_random_cases(me: Rank, seed: int) -> None:
    rng = random.Random(seed)
    for case in range(150):
        d = rng.choice([1, 2, 3, 10, 64, 200, 1000])
        compare(
            me,
            rng.randint(1, 4),
            seed=seed % 10_000 * 1000 + case,
            d=d,
            k=rng.choice([1, 2, max(1, d // 10), d, 2 * d]),
            dtype=rng.choice(DTYPES),
            algorithm=rng.choice(reference.ALGORITHMS),
            put_back=rng.choice(PUT_BACKS),
            average=rng.random() < 0.5,
            kind=rng.choice(["normal", "ties", "sparse", "tiny", "cancel", "negative zeros"]),
        )


def check_large_tensors(me: Rank) -> None:
    for algorithm in reference.ALGORITHMS:
        compare(
            me,
            4,
            seed=77,
            d=70_001,
            k=70,
            dtype=torch.float32,
            algorithm=algorithm,
            put_back="own",
            average=True,
            kind="ties",
        )


def check_the_first_example(me: Rank) -> None:
    a, b, c = 4, 1, 6
    given = [(a, 1.0), (b, 2.0), (a, 3.0), (c, 0.5)][me.rank]
    after = {
        "own": [{a: 1.0}, {b: 2.0}, {}, {c: 0.5}],
        "merged": [{a: 1.0, b: 2.0}, {}, {c: 0.5}, {}],
    }
    for algorithm, put_back in itertools.product(("gtopk", "gtopk-tree"), after):
        tensor, residual = torch.zeros(8), torch.zeros(8)
        tensor[given[0]] = given[1]
        gtopk.sparse_all_reduce(
            tensor, k=1, residual=residual, algorithm=algorithm, put_back=put_back
        )
        assert {i: tensor[i].item() for i in tensor.nonzero().flatten().tolist()} == {a: 3.0}
        left = {i: residual[i].item() for i in residual.nonzero().flatten().tolist()}
        assert left == after[put_back][me.rank], (algorithm, put_back, left)


def check_not_finite(me: Rank) -> None:
    for algorithm, bad in itertools.product(algorithms(), (torch.nan, torch.inf, -torch.inf)):
        tensor = torch.arange(50.0)
        if me.rank == 3:
            tensor[7] = bad
        residual = torch.full((50,), 0.25)
        gtopk.sparse_all_reduce(tensor, k=3, residual=residual, algorithm=algorithm)
        assert bool(tensor.isnan().all()), (algorithm, bad)
        assert bool((residual == 0.25).all()), (algorithm, bad)
    # A sum that overflows is not finite either, in float16 after rounding.
    tensor, residual = torch.full((5,), 60000.0, dtype=torch.float16), torch.zeros(5)
    gtopk.sparse_all_reduce(tensor, k=2, residual=residual)
    assert bool(tensor.isnan().all())
    assert not residual.any()


def check_shapes_and_strides(me: Rank) -> None:
    plain = torch.randn(6, 4, 3, 3, generator=torch.Generator().manual_seed(me.rank))
    expected, expected_residual = plain.clone(), torch.zeros(6, 4, 3, 3)
    gtopk.sparse_all_reduce(expected, k=20, residual=expected_residual)
    # Selection uses the logical order of elements, whatever their memory layout.
    last = plain.clone(memory_format=torch.channels_last)
    last_residual = torch.zeros_like(last)
    assert not last_residual.is_contiguous()
    gtopk.sparse_all_reduce(last, k=20, residual=last_residual)
    assert torch.equal(last, expected)
    assert torch.equal(last_residual, expected_residual)
    wide = torch.full((6, 4, 3, 6), 5.0)
    wide[..., ::2] = plain
    work = gtopk.sparse_all_reduce(
        wide[..., ::2], k=20, residual=torch.zeros_like(plain), async_op=True
    )
    work.wait()
    assert torch.equal(wide[..., ::2], expected)
    assert bool((wide[..., 1::2] == 5).all())
    scalar = torch.tensor(float(me.rank))
    gtopk.sparse_all_reduce(scalar, density=1.0)
    assert scalar.item() == 6
    empty = torch.empty(0, 3)
    gtopk.sparse_all_reduce(empty, k=1)
    gtopk.sparse_all_reduce(empty, density=0.5, residual=torch.empty(0, 3))


def check_a_list_of_tensors_is_one_vector(me: Rank) -> None:
    """Cut anywhere, differently on each rank, at odd addresses too."""
    generator = torch.Generator().manual_seed(me.rank)
    for algorithm, dtype in itertools.product(reference.ALGORITHMS, DTYPES):
        for d in (1, 700, 50_000):  # the last one's sweeps run beside the engine's thread
            whole = torch.randn(d, generator=generator).to(dtype)
            residual = torch.randn(d, generator=generator).to(ACCUMULATION[dtype])
            at = sorted(torch.randint(0, d + 1, (5,), generator=generator).tolist())
            memory = torch.empty(d + 7, dtype=dtype)
            pieces = list(memory[7:].tensor_split(at))
            torch._foreach_copy_(pieces, list(whole.tensor_split(at)))
            pieces[2] = pieces[2].clone()
            residual_of_pieces = residual.clone()
            arguments = {"density": 0.02, "algorithm": algorithm, "op": ReduceOp.AVG}
            gtopk.sparse_all_reduce(whole, residual=residual, **arguments)
            work = gtopk.sparse_all_reduce(
                pieces, residual=residual_of_pieces, async_op=True, **arguments
            )
            results = work.get_future().wait()
            assert [each.data_ptr() for each in results] == [each.data_ptr() for each in pieces]
            assert torch.equal(torch.cat(pieces), whole), (algorithm, dtype, d)
            assert torch.equal(residual_of_pieces, residual), (algorithm, dtype, d)
    # A single piece, in any shape; and an empty list.
    matrix, residual = torch.full((2, 3), float(me.rank)), torch.zeros(6)
    gtopk.sparse_all_reduce([matrix], k=6, residual=residual)
    assert bool((matrix == 6).all())
    gtopk.sparse_all_reduce([torch.empty(0), torch.empty(2, 0)], k=1, residual=torch.empty(0))


def check_what_was_delivered_is_noted_beside(me: Rank) -> None:
    backend = backend_of(None)

    def call(tensors, delivered, algorithm="topk"):
        options = SparseOptions(k=2, algorithm=algorithm, wire="raw", op=ReduceOp.AVG)
        backend.sparse_all_reduce(tensors, options, delivered=delivered).wait()

    tensor = torch.zeros(20, dtype=torch.bfloat16)
    tensor[me.rank], tensor[10] = 1 + 2**-7, 1.0
    indices, values = torch.zeros(8, dtype=torch.int64), torch.zeros(8)
    call([tensor[:7], tensor[7:]], [indices, values])
    assert indices.tolist() == [0, 1, 2, 3, 10, 0, 0, 0]
    assert values.tolist() == [1 + 2**-7] * 4 + [4.0] + [0.0] * 3
    for wrong in ([values], [values, values], [indices[:7], values], [indices[::2], values[::2]]):
        with pytest.raises(ValueError, match="recorded in two contiguous tensors"):
            call([tensor], wrong)
    with pytest.raises(ValueError, match="up to 8 entries, but there is room to record only 7"):
        call([tensor], [indices[:7], values[:7]])
    works_on(me)


def check_density_is_k(me: Rank) -> None:
    for density, k in ((0.01, 10), (0.0004, 1), (0.0105, 11), (1.0, 1000)):
        given = torch.randn(1000, generator=torch.Generator().manual_seed(me.rank))
        by_k, by_density = given.clone(), given.clone()
        gtopk.sparse_all_reduce(by_k, k=k)
        gtopk.sparse_all_reduce(by_density, density=density)
        assert torch.equal(by_k, by_density), density


def check_works_in_flight(me: Rank) -> None:
    tensors = [torch.full((40_000,), float(i + 1)) for i in range(12)]
    residuals = [torch.zeros(40_000) for _ in tensors]
    works = [
        gtopk.sparse_all_reduce(tensor, k=100, residual=residual, async_op=True)
        for tensor, residual in zip(tensors, residuals, strict=True)
    ]
    for i, work in enumerate(works):
        (result,) = work.get_future().wait()
        assert result.data_ptr() == tensors[i].data_ptr()
        work.wait()
        assert tensors[i].sum().item() == 400.0 * (i + 1)
        assert bool((tensors[i][:100] == 4.0 * (i + 1)).all())
    assert gtopk.stats()["most_in_flight"] >= 2


def check_ranks_that_differ(me: Rank) -> None:
    odd = me.rank == 1
    calls = {
        ("d=100", "d=101"): ({}, 101),
        ("k=5", "k=6"): ({"k": 6}, 100),
        ("gtopk", "topk"): ({"algorithm": "topk"}, 100),
        ("gtopk", "dense"): ({"algorithm": "dense"}, 100),
        ("own", "merged"): ({"put_back": "merged"}, 100),
        ("SUM", "AVG"): ({"op": ReduceOp.AVG}, 100),
        ("topk", "mean=contributors"): (
            {"op": ReduceOp.AVG, "mean": "contributors", "algorithm": "topk"},
            100,
        ),
    }
    for values, (other, d) in calls.items():
        tensor = torch.ones(d if odd else 100)
        residual = torch.full_like(tensor, 0.5)
        arguments = {"k": 5, **(other if odd else {})}
        with pytest.raises(dist.DistBackendError) as caught:
            gtopk.sparse_all_reduce(tensor, residual=residual, **arguments)
        for value in values:
            assert value in str(caught.value), (values, str(caught.value))
        assert bool((residual == 0.5).all()), values
        assert bool((tensor == 1).all()), values
        works_on(me)
    tensor = torch.ones(100, dtype=torch.float64 if odd else torch.float32)
    with pytest.raises(dist.DistBackendError, match=r"float32[\s\S]*float64|float64[\s\S]*float32"):
        gtopk.sparse_all_reduce(tensor, k=5)
    # The future has the error, too.
    work = gtopk.sparse_all_reduce(torch.ones(100), k=5 + odd, async_op=True)
    with pytest.raises(dist.DistBackendError, match="k="):
        work.get_future().wait()
    works_on(me)


def check_bad_arguments_of_one_rank_alone(me: Rank) -> None:
    for arguments in ({"k": 0}, {"k": 1, "density": 0.5}, {"k": 1, "algorithm": "topks"}):
        with pytest.raises(ValueError, match=r"gtopk|sparse_all_reduce"):
            gtopk.sparse_all_reduce(torch.ones(4), **arguments)
    if me.rank == 0:
        with pytest.raises(ValueError, match="residual"):
            gtopk.sparse_all_reduce(torch.ones(4), k=1, residual=torch.zeros(5))
    works_on(me)


def check_other_groups(me: Rank) -> None:
    gloo = dist.new_group(backend="gloo")
    with pytest.raises(ValueError, match="not gtopk"):
        gtopk.sparse_all_reduce(torch.ones(4), k=1, group=gloo)
    with pytest.raises(ValueError, match="not gtopk"):
        gtopk.stats(gloo)
    with pytest.raises(ValueError, match="must be a ProcessGroup"):
        gtopk.stats("default")
    pair = dist.new_group([1, 3])
    tensor = torch.full((4,), float(me.rank))
    gtopk.sparse_all_reduce(tensor, k=4, group=pair)
    assert tensor[0].item() == (4 if me.rank in (1, 3) else me.rank)
    both = dist.new_group(backend="cpu:gtopk")
    gtopk.sparse_all_reduce(tensor, k=4, group=both)
    dist.barrier()


def check_statistics(me: Rank) -> None:
    group = dist.new_group([0, 1, 2, 3])
    before = gtopk.stats(group)
    for _ in range(3):
        gtopk.sparse_all_reduce(torch.randn(1000), k=10, wire="raw", group=group)
    after = gtopk.stats(group)
    assert after["operations"] - before["operations"] == 3
    # P = 4: two rounds, each with a header of 64 bytes and ten entries of 8.
    assert after["messages_sent"] - before["messages_sent"] == 6
    assert after["messages_received"] - before["messages_received"] == 6
    assert after["bytes_sent"] - before["bytes_sent"] == 6 * (64 + 80)
    assert after["bytes_received"] - before["bytes_received"] == 6 * (64 + 80)
    assert after["notices_sent"] == 0
    assert after["most_in_flight"] >= 1
    assert all(after[f"{phase}_seconds"] > 0 for phase in ("compress", "exchange", "commit"))
    assert "UCX" in after["transport"]
    assert list(after) == list(Statistics.__annotations__)  # the core's table, and the transport's


def test_on_four_ranks(four: RankSet, check) -> None:
    four.run(check)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_all_type_and_option_combinations_match_reference_bits(four, ranks) -> None:
    four.run(check_every_combination, ranks)


def test_random_cases_have_the_references_bits(four: RankSet) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    four.run(check_random_cases, seed)
