"""What one algorithm, wire or selector of gtopk.sparse_all_reduce promises."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.distributed as dist
from gtopk.core.groups import backend_of
from gtopk.ops.options import SparseOptions, selectors

import gtopk
from helpers.ranks import Rank, RankSet, works_on

pytestmark = pytest.mark.loopback


def check_random_k_draws_other_indices_in_every_call(me: Rank) -> None:
    """The same indices on every rank; what is not drawn stays in the residual."""
    gradient = torch.arange(1.0, 1001.0) * (me.rank + 1)
    seen = []
    for _ in range(2):
        tensor, residual = gradient.clone(), torch.zeros(1000)
        gtopk.sparse_all_reduce(tensor, k=50, residual=residual, algorithm="random-k")
        drawn = tensor.nonzero().flatten()
        assert len(drawn) == 50
        assert torch.equal(tensor[drawn], (drawn + 1.0) * 10)  # 1 + 2 + 3 + 4
        expected = gradient.clone()
        expected[drawn] = 0
        assert torch.equal(residual, expected)
        seen.append(drawn.tolist())
    assert seen[0] != seen[1]


def check_sketch_delivers_exactly_what_is_heavy_in_the_sum(me: Rank) -> None:
    """The largest of the sum, which is no rank's largest; what is not delivered stays."""
    gradient = torch.randn(20_000, generator=torch.Generator().manual_seed(me.rank))
    gradient[5000:5010] = 100.0
    gradient[me.rank * 10 : (me.rank + 1) * 10] = 150.0
    group = dist.new_group()  # calls are counted from 1 in it, and hashes depend on the number
    for _ in range(2):
        tensor, residual = gradient.clone(), torch.zeros(20_000)
        gtopk.sparse_all_reduce(tensor, k=10, residual=residual, algorithm="sketch", group=group)
        assert tensor.nonzero().flatten().tolist() == list(range(5000, 5010))
        assert bool((tensor[5000:5010] == 400.0).all())  # 4 x 100 exactly: no estimate
        expected = gradient.clone()
        expected[5000:5010] = 0
        assert torch.equal(residual, expected)
    dist.destroy_process_group(group)


def check_every_wire_loses_nothing(me: Rank) -> None:
    """Result and residuals together equal the input; a coarser wire sends fewer bytes."""
    gradient = torch.randn(20_000, generator=torch.Generator().manual_seed(me.rank))
    total = gradient.double()
    dist.all_reduce(total)
    sent, results = {}, {}
    for wire in ("raw", None, "bf16", "fp16", "int8"):
        tensor, residual = gradient.clone(), torch.zeros(20_000)
        before = gtopk.stats()["bytes_sent"]
        gtopk.sparse_all_reduce(tensor, k=500, residual=residual, wire=wire)
        sent[wire], results[wire] = gtopk.stats()["bytes_sent"] - before, tensor
        left = residual.double()
        dist.all_reduce(left)
        assert torch.allclose(tensor.double() + left, total, atol=1e-5), wire
    assert torch.equal(results[None], results["raw"])  # coding changes no result
    assert torch.equal(results["bf16"], results["bf16"].bfloat16().float())
    assert sent["raw"] == 2 * (64 + 500 * 8)
    assert sent[None] < 0.75 * sent["raw"]
    assert sent["int8"] < min(sent["bf16"], sent["fp16"])
    assert max(sent["bf16"], sent["fp16"]) < 0.5 * sent["raw"]


def check_the_coarsest_wires_lose_nothing_and_send_least(me: Rank) -> None:
    """Only selections are rounded. The second of the two rounds of "topk" passes two of them on."""
    gradient = torch.randn(20_000, generator=torch.Generator().manual_seed(me.rank))
    total = gradient.double()
    dist.all_reduce(total)
    sent = {}
    for wire in ("int8", "4bit", "2bit", "ternary", "sign"):
        tensor, residual = gradient.clone(), torch.zeros(20_000)
        before = gtopk.stats()["bytes_sent"]
        gtopk.sparse_all_reduce(tensor, k=500, residual=residual, wire=wire, algorithm="topk")
        sent[wire] = gtopk.stats()["bytes_sent"] - before
        left = residual.double()
        dist.all_reduce(left)
        assert torch.allclose(tensor.double() + left, total, atol=1e-5), wire
    # For 500 entries 1 byte each, 4 bits, 2 or 1; for two blocks scales of 2 bytes, 8 or 4, and for
    # eight of 4 bits 2 bytes. Selections that are passed on are padded to 8 bytes.
    values = {"int8": 500 + 4, "4bit": 250 + 16, "2bit": 125 + 16}
    values |= {"ternary": 63 + 8, "sign": 63 + 8}  # entries of a list are not zero
    for wire, fewer in itertools.pairwise(values):
        assert abs(sent[wire] - sent[fewer] - 3 * (values[wire] - values[fewer])) <= 2 * 7, wire
    coarse, reselecting = ("4bit", "2bit", "ternary", "sign"), ("gtopk", "gtopk-tree", "rs-ag")
    for wire, algorithm in itertools.product(coarse, reselecting):
        with pytest.raises(ValueError, match=f"'{wire}' makes many .* '{algorithm}' .*: topk, ex"):
            gtopk.sparse_all_reduce(torch.ones(9), k=1, wire=wire, algorithm=algorithm)
    works_on(me)


def check_every_selector_loses_nothing(me: Rank) -> None:
    """Approximate ones too, with half types and with a non-contiguous tensor; all send some."""
    for select, dtype in itertools.product(selectors(), (torch.float32, torch.bfloat16)):
        generator = torch.Generator().manual_seed(me.rank)
        tensor = torch.randn(200, 100, generator=generator).to(dtype).t()
        acc = tensor.double()
        total = acc.clone()
        dist.all_reduce(total)
        residual = torch.zeros(100, 200)
        gtopk.sparse_all_reduce(tensor, density=0.01, residual=residual, select=select)
        most = 4 * -(-200 // 3)
        assert 0 < tensor.count_nonzero() <= most, select
        left = residual.double()
        dist.all_reduce(left)
        # What is delivered is rounded once more, to the tensor's type.
        epsilon = torch.finfo(dtype).eps
        assert torch.allclose(tensor.double() + left, total, atol=1e-5, rtol=epsilon), select


def check_block_selector_sends_one_entry_of_each_block(me: Rank) -> None:
    """One entry from each of ten blocks, though the largest of all are in the first."""
    generator = torch.Generator().manual_seed(me.rank)
    gradient = torch.rand(950, generator=generator) + 0.5
    gradient[:100] += 100
    tensor, residual = gradient.clone(), torch.zeros(950)
    arguments = {"select": "block", "algorithm": "topk"}
    gtopk.sparse_all_reduce(tensor, density=0.01, residual=residual, block=100, **arguments)
    expected = gradient.clone()
    for begin in range(0, 950, 100):
        expected[begin + gradient[begin : begin + 100].argmax()] = 0
    assert torch.equal(residual, expected)
    sum_of_sent = gradient - residual
    dist.all_reduce(sum_of_sent)
    assert torch.equal(tensor != 0, sum_of_sent != 0)
    assert torch.allclose(tensor, sum_of_sent)
    with pytest.raises(ValueError, match="'block' takes a density and no k, seen k = 5"):
        gtopk.sparse_all_reduce(tensor, k=5, **arguments)
    for algorithm in ("gtopk", "gtopk-tree", "rs-ag", "exact", "hierarchical", "gtopk-placed"):
        tensor = gradient.clone()
        gtopk.sparse_all_reduce(
            tensor, density=0.01, select="block", block=100, algorithm=algorithm
        )
        assert [each.count_nonzero() for each in tensor.split(100)] == [1] * 10, algorithm
    with pytest.raises(dist.DistBackendError, match=r"block=1000[01].*block=1000[01]"):
        gtopk.sparse_all_reduce(tensor, density=0.01, block=10_000 + me.rank // 3, **arguments)
    works_on(me)


def check_a_threshold_is_kept_from_step_to_step(me: Rank) -> None:
    """Only by steps that happen; each rank has its own."""
    generator = torch.Generator().manual_seed(me.rank)
    residual, state = torch.zeros(5000), torch.zeros(4, dtype=torch.float64)
    arguments = {"k": 100, "algorithm": "topk", "select": "threshold", "state": state}
    counts = []
    for step in range(6):
        gradient = torch.randn(5000, generator=generator)
        acc = gradient + residual
        gtopk.sparse_all_reduce(gradient, residual=residual, **arguments)
        sent = acc[residual != acc].abs()
        threshold = state[0].item()
        assert sent.numel() == (acc.abs().double() >= threshold).sum() > 0
        if step == 0:  # exactly k, as no threshold was kept yet
            assert (sent.numel(), sent.min().item()) == (100, threshold)
        counts.append(sent.numel())
    assert all(67 <= count <= 133 for count in counts)
    assert any(count != 100 for count in counts)
    every = [torch.empty_like(state) for _ in range(me.size)]
    dist.all_gather(every, state)
    assert len({each[0].item() for each in every}) == me.size
    before = state.clone()
    spoiled = torch.full((5000,), float("nan") if me.rank == 2 else 1.0)
    gtopk.sparse_all_reduce(spoiled, residual=residual, **arguments)
    with pytest.raises(dist.DistBackendError, match=r"k=9[89].*k=9[89]"):
        gtopk.sparse_all_reduce(gradient, **{**arguments, "k": 98 + me.rank // 2})
    assert torch.equal(state, before)
    with pytest.raises(ValueError, match="share memory"):
        gtopk.sparse_all_reduce(state, **arguments)
    call = backend_of(None).sparse_all_reduce
    options = SparseOptions(k=1, algorithm="topk", select="threshold", wire="raw")
    for wrong in (torch.zeros(3).double(), torch.zeros(4), torch.zeros(8).double()[::2]):
        with pytest.raises(ValueError, match=r"contiguous float64 tensor of shape \[4\]"):
            call([torch.ones(9)], options, state=wrong)
    works_on(me)


def test_on_four_ranks(four: RankSet, check) -> None:
    four.run(check)
