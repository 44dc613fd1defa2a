"""All-reduce of sparse COO tensors, and sparse embeddings under DDP."""

from __future__ import annotations

import gc

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gtopk
from helpers.collectives import usable
from helpers.ranks import Rank, RankSet

pytestmark = pytest.mark.loopback

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def drawn(
    rank: int, sparse: tuple[int, ...], dense: tuple[int, ...], nnz: int, dtype: torch.dtype
) -> torch.Tensor:
    """A rank's tensor, the same on every rank that asks; uncoalesced, as indices repeat."""
    generator = torch.Generator().manual_seed(rank)
    indices = [torch.randint(size, (nnz,), generator=generator) for size in sparse]
    values = torch.randint(0, 20, (nnz, *dense), generator=generator).to(dtype)
    return torch.sparse_coo_tensor(
        torch.stack(indices), values, (*sparse, *dense), check_invariants=True
    )


def expect_sum(
    me: Rank, sparse: tuple[int, ...], dense: tuple[int, ...], nnz: list[int], dtype: torch.dtype
) -> None:
    tensors = [drawn(rank, sparse, dense, nnz[rank], dtype) for rank in range(me.size)]
    wide = torch.float64 if dtype.is_floating_point else torch.int64
    expected = sum(tensor.to(wide).to_dense() for tensor in tensors)
    mine = tensors[me.rank]
    indices = {tuple(each) for tensor in tensors for each in tensor._indices().T.tolist()}
    dist.all_reduce(mine)
    assert mine.is_coalesced()
    assert mine.dtype == dtype
    assert mine.shape == (*sparse, *dense)
    # Small whole numbers: exact in every floating type, and modulo 2^n in integers.
    assert torch.equal(mine.to_dense(), expected.to(dtype))
    assert {tuple(each) for each in mine.indices().T.tolist()} == indices


def check_sums_of_every_type(me: Rank) -> None:
    for dtype in (*FLOATS, *INTEGERS):
        expect_sum(me, (50,), (), [10, 0, 3, 60], dtype)


def check_hybrid_and_of_several_dimensions(me: Rank) -> None:
    expect_sum(me, (50,), (3, 2), [10, 0, 3, 60], torch.float32)
    expect_sum(me, (7, 3, 5), (), [10, 1, 0, 60], torch.float32)
    expect_sum(me, (7, 3), (4,), [10, 1, 3, 60], torch.int64)
    expect_sum(me, (5,), (0,), [1, 0, 3, 2], torch.float32)


def check_of_no_entries_and_of_many(me: Rank) -> None:
    expect_sum(me, (50,), (4,), [0] * 4, torch.float32)
    expect_sum(me, (5000,), (16,), [4000, 0, 3000, 5000], torch.float32)


def check_gloo_has_the_same(me: Rank) -> None:
    gloo = dist.new_group(backend="gloo")
    for dense in ((), (3,)):
        mine = drawn(me.rank, (50,), dense, 5 + me.rank, torch.float32)
        theirs = mine.clone()
        dist.all_reduce(mine)
        dist.all_reduce(theirs, group=gloo)
        assert torch.equal(mine.to_dense(), theirs.to_dense())
    dist.destroy_process_group(gloo)


def check_many_at_once_and_their_futures(me: Rank) -> None:
    tensors = [drawn(me.rank, (50,), (2,), 5 + i, torch.float32) for i in range(20)]
    before = [tensor.to_dense() for tensor in tensors]
    futures = [dist.all_reduce(tensor, async_op=True).get_future() for tensor in tensors]
    for future, tensor, dense in zip(futures, tensors, before, strict=True):
        dist.all_reduce(dense)
        assert torch.equal(future.wait()[0].to_dense(), dense)
        assert torch.equal(tensor.to_dense(), dense)


def check_ranks_that_differ_hear_of_both(me: Rank) -> None:
    size = 50 + (me.rank == 2)
    with pytest.raises(dist.DistBackendError, match=r"sizes=5[01].*sizes=5[01]"):
        dist.all_reduce(drawn(me.rank, (size,), (), 3, torch.float32))
    other = drawn(me.rank, (6, 4), (), 3, torch.float32)
    if me.rank == 1:
        other = drawn(me.rank, (6,), (4,), 3, torch.float32)
    with pytest.raises(dist.DistBackendError, match=r"sparse_dim=[12].*sparse_dim=[12]"):
        dist.all_reduce(other)
    with pytest.raises(dist.DistBackendError, match="ranks differ"):
        dist.all_reduce(torch.ones(5).to_sparse() if me.rank == 3 else torch.ones(5))
    usable(me)


def check_bad_calls_send_nothing(me: Rank) -> None:
    tensor = drawn(me.rank, (50,), (), 3, torch.float32)
    before = tensor.to_dense()
    for op in (dist.ReduceOp.AVG, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
        with pytest.raises(ValueError, match="takes SUM, given"):
            dist.all_reduce(tensor, op)
    assert torch.equal(tensor.to_dense(), before)
    usable(me)


class Words(nn.Module):
    """A sum of embeddings, and a dense layer."""

    def __init__(self) -> None:
        """The same parameters on every rank."""
        super().__init__()
        torch.manual_seed(3)
        self.words = nn.Embedding(40, 8, sparse=True)
        self.out = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Classes of a list of words."""
        return self.out(self.words(x).sum(1))


def trained(me: Rank, group: dist.ProcessGroup, *, attached: bool = False) -> torch.Tensor:
    model = Words()
    ddp = DistributedDataParallel(model, process_group=group)
    if attached:
        state = gtopk.attach(ddp, density=1.0, min_numel=1)
        assert {name for unit in state.units for name in unit.names} == {"out.weight", "out.bias"}
        gc.freeze()  # as before workers are forked: the collector does not list the DDP any more
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for step in range(5):
        generator = torch.Generator().manual_seed(10 * step + me.rank)
        x = torch.randint(40, (4, 3 + me.rank), generator=generator)
        labels = torch.randint(3, (4,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(ddp(x), labels).backward()
        assert model.words.weight.grad.is_sparse
        optimizer.step()
    gc.unfreeze()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def check_sparse_embeddings_under_ddp_train_as_over_gloo(me: Rank) -> None:
    gloo = dist.new_group(backend="gloo")
    theirs = trained(me, gloo)
    for attached in (False, True):
        mine = trained(me, dist.group.WORLD, attached=attached)
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
        all_ranks = [torch.empty_like(mine) for _ in range(me.size)]
        dist.all_gather(all_ranks, mine)
        assert all(torch.equal(mine, each) for each in all_ranks)
    dist.destroy_process_group(gloo)


def check_momentum_with_sparse_gradients_is_refused(me: Rank) -> None:
    ddp = DistributedDataParallel(Words())
    with pytest.raises(NotImplementedError, match=r"'words.weight' is sparse COO, and momentum="):
        gtopk.attach(ddp, density=0.1, momentum=0.9)
    usable(me)


class Given(nn.Module):
    """Two embeddings and a weight; the gradients of its sum are the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Embedding(20, 3, sparse=True)
        self.other = nn.Embedding(20, 3, sparse=True)
        self.weight = nn.Parameter(torch.zeros(60))

    def forward(self, x: torch.Tensor, scales: list[float]) -> torch.Tensor:
        a, b, c = scales
        return a * self.one(x).sum() + b * self.other(x).sum() + c * self.weight.sum()


def gradients(model: Given) -> list[torch.Tensor]:
    return [each.grad.to_dense() for each in (model.one.weight, model.other.weight, model.weight)]


def check_sparse_gradients_are_clipped_with_the_others(me: Rank) -> None:
    """Words occur twice in a gradient: the norm takes their sum as one element."""
    words = torch.tensor([me.rank, 7, 7, 11])
    scales = [1.0, 2.0 + me.rank, 0.5]
    plain = Given()
    plain(words, scales).backward()
    mine = gradients(plain)
    norms = torch.stack([each.norm() for each in mine])
    most = 1.0 / me.size**0.5
    for clip in ("model", "unit"):
        for scaler in (None, torch.amp.GradScaler("cpu", init_scale=4.0)):
            ddp = DistributedDataParallel(Given())
            gtopk.attach(ddp, density=1.0, clip_norm=1.0, clip=clip, min_numel=1, scaler=scaler)
            factors = most / (norms if clip == "unit" else norms.norm().expand(3))
            expected = [f.clamp(max=1) * g for f, g in zip(factors, mine, strict=True)]
            for each in expected:
                dist.all_reduce(each, dist.ReduceOp.AVG)
            for _ in range(2):
                ddp.zero_grad()
                loss = ddp(words, scales)
                (loss if scaler is None else 4.0 * loss).backward()
                assert ddp.module.one.weight.grad.is_sparse
                for seen, wanted in zip(gradients(ddp.module), expected, strict=True):
                    seen = seen if scaler is None else seen / 4
                    torch.testing.assert_close(seen, wanted, rtol=1e-5, atol=1e-6)


def check_one_non_finite_gradient_stops_the_whole_scaled_step(me: Rank) -> None:
    """On one rank, in a sparse one or the weight's: with a scaler no residual moves."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    ddp = DistributedDataParallel(Given())
    state = gtopk.attach(ddp, density=0.1, scaler=scaler, min_numel=1)
    words = torch.tensor([me.rank, 7, 7, 11])
    for scales in (
        [1.0, 2.0, 0.5],
        *torch.eye(3).mul(torch.inf).nan_to_num(1.0, torch.inf).tolist(),
    ):
        before = state.residual("weight").clone()
        bad = max(scales) == torch.inf
        ddp.zero_grad()
        ddp(words, scales if me.rank == 2 else [1.0, 2.0, 0.5]).backward()
        # Zeros beside NaN are places where no rank has a word.
        assert all(bool(each.isnan().any()) == bad for each in gradients(ddp.module)), scales
        for each in ddp.module.parameters():
            values = each.grad._values() if each.grad.is_sparse else each.grad
            assert bool(values.isfinite().all()) != bad
            assert bool(values.isnan().all()) == bad
        assert torch.equal(state.residual("weight"), before) == bad
    alone = DistributedDataParallel(Given())
    gtopk.attach(alone, density=0.1, min_numel=1)
    alone(words, [1.0, torch.inf, 1.0]).backward()  # without a scaler each unit is a step
    assert all(bool(each.isfinite().all()) for each in gradients(alone.module)[::2])


def test_on_four_ranks(four: RankSet, check) -> None:
    four.run(check)
