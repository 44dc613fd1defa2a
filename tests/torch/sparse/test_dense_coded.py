"""algorithm="dense" on wires that round: every element, in few bits."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

import gtopk
from helpers.fsdp import Training as Sharded
from helpers.ledger import Ledger
from helpers.ranks import Rank, RankSet, works_on
from helpers.scaler import equal, residuals, scaled_step, scaler
from helpers.training import Plain, Training, flat, gloo, replicas_are_bitwise_equal
from helpers.training import equal as all_equal

pytestmark = pytest.mark.loopback

SMALL_UNITS = 8 * 1024  # bytes: five units, one per weight matrix
# Bytes of 1,280 elements of float32, whole blocks of every wire.
BYTES = {
    "bf16": 2560,
    "fp16": 2560,
    "int8": 5 * 258,
    "4bit": 20 * 34,
    "2bit": 5 * 72,
    "ternary": 4 * 66,
    "sign": 5 * 36,
}


def check_every_wire_sends_all_in_few_bits_and_loses_nothing(me: Rank) -> None:
    """Four regions: each rank sends three of its own, and one sum to three."""
    d = 4 * 4 * 1280
    gradient = torch.randn(d, generator=torch.Generator().manual_seed(me.rank))
    total = gradient.double()
    dist.all_reduce(total)
    for wire, stretch in BYTES.items():
        tensor, residual = gradient.clone(), torch.zeros(d)
        before = gtopk.stats()["bytes_sent"]
        gtopk.sparse_all_reduce(tensor, algorithm="dense", wire=wire, residual=residual)
        assert gtopk.stats()["bytes_sent"] - before == 2 * 64 + 6 * 4 * stretch, wire
        left = residual.double()
        dist.all_reduce(left)
        assert torch.allclose(tensor.double() + left, total, atol=1e-5), wire
        assert residual.any(), wire
        first = tensor.clone()
        dist.broadcast(first, 0)
        assert torch.equal(first, tensor), wire
        mean, dropped = gradient.clone(), gradient.clone()
        gtopk.sparse_all_reduce(mean, algorithm="dense", wire=wire, op=ReduceOp.AVG)
        assert torch.equal(mean, tensor / 4), wire
        gtopk.sparse_all_reduce(dropped, algorithm="dense", wire=wire)
        assert torch.equal(dropped, tensor), wire


def check_every_type_in_pieces_and_strides(me: Rank) -> None:
    generator = torch.Generator().manual_seed(me.rank)
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        pieces = [torch.randn(n, generator=generator).to(dtype) for n in (100, 1, 0, 700)]
        whole = torch.cat(pieces)
        strided = whole.view(9, 89).t().contiguous().t()
        gtopk.sparse_all_reduce(whole, algorithm="dense", wire="4bit")
        gtopk.sparse_all_reduce(pieces, algorithm="dense", wire="4bit")
        gtopk.sparse_all_reduce(strided, algorithm="dense", wire="4bit")
        assert whole.any(), dtype
        assert torch.equal(torch.cat(pieces), whole), dtype
        assert torch.equal(strided, whole.view(9, 89)), dtype


def check_a_non_finite_element_anywhere_leaves_no_trace(me: Rank) -> None:
    for bad in range(me.size):
        tensor, residual = torch.ones(1000), torch.full((1000,), 0.1)
        tensor[999 if me.rank == bad else 0] = float("inf") if me.rank == bad else 1.0
        gtopk.sparse_all_reduce(tensor, algorithm="dense", wire="int8", residual=residual)
        assert tensor.isnan().all()
        assert torch.equal(residual, torch.full((1000,), 0.1))
    works_on(me)


def check_ranks_with_two_wires_are_told_both(me: Rank) -> None:
    wire = "int8" if me.rank == 1 else "4bit"
    with pytest.raises(dist.DistBackendError, match=r"wire=int8") as error:
        gtopk.sparse_all_reduce(torch.ones(100), algorithm="dense", wire=wire)
    assert "wire=4bit" in str(error.value)
    works_on(me)


def check_it_is_dense_and_no_exact_sum(me: Rank) -> None:
    arguments = {"algorithm": "dense", "wire": "int8"}
    gtopk.sparse_all_reduce(torch.ones(9), **arguments, semantics="dense")
    for semantics in ("exact_sum", "gtopk"):
        with pytest.raises(ValueError, match=f"'{semantics}' rules out .* 'dense' on wire 'int8'"):
            gtopk.sparse_all_reduce(torch.ones(9), **arguments, semantics=semantics)
    gtopk.sparse_all_reduce(torch.ones(9), algorithm="dense", semantics="exact_sum")
    plan = gtopk.plan(100_000, density=0.5, wire="int8", semantics="dense")
    assert set(plan["predictions"]) == {"dense", "dense-placed"}
    assert plan["predictions"]["dense"]["bytes"] < 2 * 100_000


def check_training_keeps_up_with_dense(me: Rank) -> None:
    for wire in ("bf16", "int8", "4bit"):
        coded, plain = Training(me.rank), Training(me.rank, group=gloo())
        state = gtopk.SparseState(
            coded.model.named_parameters(), algorithm="dense", wire=wire, unit=SMALL_UNITS
        )
        assert state.density == "dense"
        ledger = Ledger(coded.ddp, state)
        for _ in range(10):
            ledger.open()
            last = coded.step(), plain.step()
            ledger.check()
        assert abs(last[0] - last[1]) < (0.1 if wire == "4bit" else 0.02)
        assert replicas_are_bitwise_equal(coded.model)
        assert all(each.any() for each in residuals(state).values())


def check_one_rank_of_a_host_keeps_what_coding_loses(me: Rank) -> None:
    """All four share a host: the others send it their gradients, and get its codes."""
    training, plain = Training(me.rank), Training(me.rank, group=gloo())
    state = gtopk.SparseState(
        training.model.named_parameters(), algorithm="dense-placed", wire="4bit", unit=SMALL_UNITS
    )
    ledger = Ledger(training.ddp, state)
    for _ in range(10):
        ledger.open()
        last = training.step(), plain.step()
        ledger.check()
    assert abs(last[0] - last[1]) < 0.1
    assert replicas_are_bitwise_equal(training.model)
    assert all(each.any() == (me.rank == 0) for each in residuals(state).values())

    before = gtopk.stats()["bytes_sent"]
    tensor = torch.randn(64 * 100)
    gtopk.sparse_all_reduce(tensor, algorithm="dense-placed", wire="4bit")
    sent = gtopk.stats()["bytes_sent"] - before
    assert sent == 2 * 64 + (3 * 100 * 34 if me.rank == 0 else 4 * 64 * 100)


def check_a_density_is_not_taken(me: Rank) -> None:
    message = "algorithm='dense' sends every element and takes no density, given 0.1"
    with pytest.raises(ValueError, match=message):
        gtopk.attach(Training(me.rank).ddp, density=0.1, algorithm="dense")
    with pytest.raises(ValueError, match="algorithm='dense-placed' sends every element"):
        gtopk.attach(Training(me.rank).ddp, density=0.1, algorithm="dense-placed")
    with pytest.raises(ValueError, match=r"takes only \('dense', steps\) and .* in the warmup"):
        gtopk.attach(Training(me.rank).ddp, algorithm="dense", warmup=[(0.1, 2)])
    state = gtopk.attach(Training(me.rank).ddp, algorithm="dense", wire="int8")
    with pytest.raises(ValueError, match=message):
        state.density = 0.1


def check_a_dense_phase_is_coded_on_its_own_wire_only(me: Rank) -> None:
    training = Training(me.rank)
    state = training.hooked(
        density=0.02,
        algorithm="topk",
        wire="2bit",
        unit=SMALL_UNITS,
        warmup=[("dense", 2), ("dense", 2, "4bit"), ("dense", 1)],
    )
    left = []
    for _ in range(5):
        training.step()
        left.append(any(each.any() for each in residuals(state).values()))
    assert left == [False, False, True, True, False]
    assert (state.density, state.wire) == (0.02, "2bit")
    training.steps(2)
    assert replicas_are_bitwise_equal(training.model)
    for warmup in ([(0.1, 2, "4bit")], [("dense", 2, "4bit", 1)], [("dense",)]):
        with pytest.raises(ValueError, match="warmup must be pairs"):
            gtopk.SparseState(training.model.named_parameters(), warmup=warmup)
    with pytest.raises(ValueError, match="unknown wire 'zip'"):
        gtopk.SparseState(training.model.named_parameters(), warmup=[("dense", 2, "zip")])


# Scaling by a power of two and back leaves every bit of a gradient as it is.
def check_a_scale_that_grows_changes_no_bit(me: Rank) -> None:
    arguments = {"algorithm": "dense", "wire": "4bit", "unit": SMALL_UNITS}
    plain, scaled = Training(me.rank), Training(me.rank)
    scales = scaler()
    expected = plain.hooked(**arguments)
    state = scaled.hooked(**arguments, scaler=scales)
    for _ in range(6):
        plain.step()
        scaled_step(scaled, scales)
    assert torch.equal(flat(plain.model), flat(scaled.model))
    assert equal(residuals(expected), residuals(state))
    assert replicas_are_bitwise_equal(scaled.model)


def check_a_run_that_is_resumed_goes_on_bit_for_bit(me: Rank) -> None:
    arguments = {"algorithm": "dense", "wire": "4bit", "unit": SMALL_UNITS}
    whole, resumed = Training(me.rank), Training(me.rank)
    state = whole.hooked(**arguments)
    whole.steps(4)
    parts = (whole.model, whole.optimizer, state)
    saved = copy.deepcopy([part.state_dict() for part in parts])
    later = resumed.hooked(**arguments)
    for part, each in zip((resumed.model, resumed.optimizer, later), saved, strict=True):
        part.load_state_dict(each)
    resumed.at = whole.at
    whole.steps(3)
    resumed.steps(3)
    assert torch.equal(flat(whole.model), flat(resumed.model))
    assert equal(residuals(state), residuals(later))


def check_the_optimizer_gives_the_bits_of_ddp(me: Rank) -> None:
    arguments = {"algorithm": "dense", "wire": "int8", "unit": SMALL_UNITS}
    hooked, plain = Training(me.rank), Plain(me.rank, **arguments)
    state = hooked.hooked(**arguments)
    for _ in range(4):
        assert hooked.step() == plain.step()
    assert torch.equal(flat(hooked.model), flat(plain.model))
    assert equal(residuals(state), residuals(plain.state))


def check_replicas_of_shards(me: Rank) -> None:
    coded, plain = Sharded(me, algorithm="dense", wire="int8"), Sharded(me, algorithm="dense")
    for _ in range(4):
        last = coded.step(), plain.step()
    assert abs(last[0] - last[1]) < 0.02 * abs(last[1])
    assert coded.replicas_are_bitwise_equal()
    assert not all_equal(coded.shards(), plain.shards())
    assert any(each.any() for each in residuals(coded.state).values())
    assert not any(each.any() for each in residuals(plain.state).values())


def test_on_four_ranks(four: RankSet, check) -> None:
    four.run(check)
