"""examples/convergence: simulated ranks, what they send, the sweep of rates and its table."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.distributed as dist

from helpers import reference
from helpers.paths import EXAMPLES
from helpers.ranks import Rank, RankSet, environment

EXAMPLE = EXAMPLES / "convergence"
sys.path.insert(0, str(EXAMPLE))

import exchanges  # noqa: E402
import gpt  # noqa: E402
import paired  # noqa: E402
import records  # noqa: E402
import simulate  # noqa: E402
import sketches  # noqa: E402
import sweep  # noqa: E402
from codes import BLOCK, LEVELS_4BIT, bytes_of, code  # noqa: E402
from simulated import PLAIN, SPARSE, Method, method_of  # noqa: E402
from tasks import TASKS  # noqa: E402

import gtopk  # noqa: E402

WATCHDOG = 600
CODED = ("bf16", "fp16", "int8", "4bit", "2bit", "ternary", "sign")


def tasks_of(name: str, ranks: int, seed: int = 0) -> list:
    return [TASKS[name](rank, ranks, "alike", seed) for rank in range(ranks)]


@pytest.mark.parametrize(
    ("algorithm", "kind", "more"),
    [
        ("dense", exchanges.Exchange, {}),
        ("topk", exchanges.TopK, {}),
        ("exact", exchanges.Exact, {}),
        ("true-topk", sketches.TrueTopK, {}),
        ("gtopk", exchanges.GTopK, {}),
        ("gtopk", exchanges.GTopK, {"put_back": "merged"}),
    ],
)
@pytest.mark.parametrize("ranks", range(1, 7))
def test_simulated_exchange_has_the_bits_of_the_reference(algorithm, kind, more, ranks):
    draws = torch.Generator().manual_seed(ranks)
    for d in (7, 20_000) if algorithm == "dense" else (7, 800):
        exchange = kind(**({"density": 0.05} | more if algorithm != "dense" else {}))
        exchange.start(ranks, [torch.Size([d])])
        residuals = None
        for step in range(4):
            rows = torch.randn(ranks, d, generator=draws)
            rows = (8 * rows).round() / 8 if step % 2 else rows  # with many ties
            k = getattr(exchange, "k", 1)
            put_back = more.get("put_back", "own")
            right = reference.sparse_all_reduce(
                list(rows), residuals, k, algorithm, put_back, average=True
            )
            residuals = right.residuals
            assert torch.equal(exchange.mean(rows, 1.0), right.tensor)
            assert torch.equal(exchange.residual, torch.stack(residuals))


def check_simulated_sketches_have_the_bits_of_real_ones(me: Rank) -> None:
    """Sums along the tree and in a ring; a sketch that is as large as the vector."""
    for d, k in ((3000, 20), (100_000, 500), (500, 20)):
        group = dist.new_group()  # whose calls are counted from 1
        draws = torch.Generator().manual_seed(d)
        shared = torch.randn(d, generator=draws) / torch.rand(d, generator=draws)
        exchange = sketches.Sketch(k / d)
        exchange.start(me.size, [torch.Size([d])])
        residual = torch.zeros(d)
        for _ in range(3):
            rows = shared + torch.randn(me.size, d, generator=draws)
            tensor = rows[me.rank].clone()
            gtopk.sparse_all_reduce(tensor, k=k, residual=residual, algorithm="sketch", group=group)
            assert torch.equal(exchange.mean(rows, 1.0) * me.size, tensor)
            assert torch.equal(exchange.residual[me.rank], residual)
        assert all(each > 0 if d > 500 else each == 1 for each in exchange.recalls)
        dist.destroy_process_group(group)


@pytest.mark.loopback
def test_simulated_sketches(four: RankSet):
    four.run(check_simulated_sketches_have_the_bits_of_real_ones)


def decoded(wire: str, block: np.ndarray) -> np.ndarray:
    """A block of float32 by the rules of docs/algorithms.md, value by value."""
    magnitudes = np.abs(block)
    largest = magnitudes.max()
    if largest == 0:
        return np.zeros_like(block)
    if wire == "int8":
        e = min(e for e in range(-149, 128) if largest <= np.float64(127) * 2.0**e)
        return np.array([np.rint(x / 2.0**e) * 2.0**e for x in block.astype(float)], np.float32)
    if wire == "4bit":
        unit = max(np.float32(largest) / np.float32(127), np.finfo(np.float32).tiny)
        mantissa, exponent = math.frexp(unit)
        unit = np.float32(math.ldexp(math.floor(mantissa * 256), exponent - 8))
        unit = unit if block.max() == largest else -unit
        units = [np.rint(x * (np.float32(1) / unit)) for x in block]
        nearest = [min(LEVELS_4BIT, key=lambda v, u=u: (abs(v - u), abs(v))) for u in units]
        return np.array([np.float32(v) * unit for v in nearest], np.float32)
    mean = magnitudes.mean(dtype=float)
    if wire == "ternary":
        chosen = magnitudes > mean if largest > mean else magnitudes > 0
        bits = np.float32(magnitudes[chosen].mean(dtype=float)).view(np.uint32)
        return np.where(chosen, np.sign(block) * (bits & 0xFFFF0000).view(np.float32), 0)
    parts = {"sign": [magnitudes >= 0], "2bit": [magnitudes <= mean, magnitudes > mean]}[wire]
    scales = np.zeros_like(block)
    for part in parts:
        if part.any():
            mantissa, exponent = math.frexp(magnitudes[part].mean(dtype=float))
            scales[part] = math.ldexp(math.floor(mantissa * 2**24), exponent - 24)
    return np.where(block < 0, -scales, scales)


@pytest.mark.parametrize("wire", ["int8", "4bit", "2bit", "ternary", "sign"])
def test_code_of_blocks_is_the_one_value_by_value(wire):
    size = BLOCK[wire]
    rows = torch.randn(3, 5 * size + 7, generator=torch.Generator().manual_seed(1))
    rows[0, :size] = 0
    rows[0, size : size + 9] = 0
    rows[1] *= 1e-30
    rows[2] = (16 * rows[2]).round() / 16
    rows[2, 0] = -rows[2].abs().max()
    rows[2, size : 2 * size] = 0.75
    rows[2, size + 1] = -0.75
    found = code(wire, rows)
    for row, result in zip(rows.numpy(), found.numpy(), strict=True):
        for begin in range(0, len(row), size):
            part = slice(begin, begin + size)
            np.testing.assert_array_equal(result[part], decoded(wire, row[part]))


@pytest.mark.parametrize("wire", CODED)
def test_coding_what_was_decoded_changes_nothing(wire):
    rows = torch.randn(2, 1000, generator=torch.Generator().manual_seed(2))
    once = code(wire, rows)
    assert torch.equal(code(wire, once), once)
    assert not torch.equal(once, rows)


def test_coded_bytes_include_scales():
    assert bytes_of("4bit", 64) == 34
    assert bytes_of("4bit", 65) == 36.5
    assert bytes_of("int8", 512) == 516
    assert bytes_of("2bit", 256) == 72
    assert bytes_of("ternary", 640) == 132
    assert bytes_of("sign", 256) == 36
    assert bytes_of("bf16", 10) == 20


@pytest.mark.parametrize("wire", CODED)
def test_dense_coded_with_feedback_loses_no_gradient(wire):
    ranks, d = 3, 1000
    exchange = exchanges.Coded(wire)
    exchange.start(ranks, [torch.Size([d])])
    delivered, draws = torch.zeros(d), torch.Generator().manual_seed(3)
    given = torch.zeros(d)
    for _ in range(5):
        rows = torch.randn(ranks, d, generator=draws)
        given += rows.sum(0)
        delivered += exchange.mean(rows, 1.0) * ranks
    assert exchange.residual.any()
    torch.testing.assert_close(delivered + exchange.residual.sum(0), given, rtol=1e-4, atol=1e-4)


def test_dense_coded_leaves_the_error_of_a_sum_with_its_owner():
    exchange = exchanges.Coded("sign")
    exchange.start(2, [torch.Size([512])])
    rows = torch.ones(2, 512)
    rows[1] = 3.0
    rows[1, ::2] = -3.0
    exchange.mean(rows, 1.0)  # both rows are coded without loss; their sums, 4 and -2, are not
    assert exchange.residual[0, :256].abs().unique().tolist() == [1.0]
    assert exchange.residual[1, 256:].abs().unique().tolist() == [1.0]
    assert not exchange.residual[0, 256:].any()
    assert not exchange.residual[1, :256].any()


def test_power_sgd_keeps_what_exceeds_its_rank_in_the_residual():
    draws = torch.Generator().manual_seed(4)
    left, right = torch.randn(20, 2, generator=draws), torch.randn(2, 30, generator=draws)
    rows = torch.stack([(left @ right).flatten(), (left @ right).flatten()])
    for rank, is_whole in ((2, True), (1, False)):
        exchange = exchanges.PowerSGD(rank)
        exchange.start(2, [torch.Size([20, 30])])
        mean = exchange.mean(rows, 1.0)
        assert torch.allclose(mean, rows[0], atol=1e-4) == is_whole
        torch.testing.assert_close(mean + exchange.residual.mean(0), rows.mean(0))
        assert exchange.bytes == 4 * 50 * rank


def test_mean_over_contributors_divides_by_who_sent():
    rows = torch.tensor([[9.0, 0.5, 0.0, 0.1], [7.0, 0.1, 0.2, 5.0]])
    for divisor, right in (("ranks", [8, 0.25, 0, 2.5]), ("contributors", [8, 0.5, 0, 5])):
        exchange = exchanges.TopK(0.5, divisor=divisor)
        exchange.start(2, [torch.Size([4])])
        assert exchange.mean(rows, 1.0).tolist() == right


def test_blocks_have_the_same_share_each():
    values = torch.arange(1.0, 21.0)
    mask = exchanges.first_of_blocks(values, 2, 8)
    assert mask.nonzero().flatten().tolist() == [6, 7, 14, 15, 19]
    assert not exchanges.first_of_blocks(torch.zeros(20), 2, 8).any()


def test_residual_updates_keep_the_learning_rate_of_their_step():
    exchange = exchanges.TopK(0.5, update=True)
    exchange.start(1, [torch.Size([2])])
    assert exchange.mean(torch.tensor([[4.0, 1.0]]), 1.0).tolist() == [4, 0]
    # 1 waits as an update of 1; at a tenth of the rate it counts as a gradient of 10.
    assert exchange.mean(torch.tensor([[4.0, 0.0]]), 0.1).tolist() == [0, 10]


def test_a_share_of_each_layer_is_selected():
    exchange = exchanges.TopK(0.25, layer_wise=True)
    exchange.start(1, [torch.Size([8]), torch.Size([2, 2])])
    found = exchange.mean(torch.arange(12.0, 0.0, -1.0)[None], 1.0)
    assert found.tolist() == [12, 11, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0]


def test_density_falls_with_the_rate():
    exchange = exchanges.TopK(0.11, falling=True)
    exchange.start(1, [torch.Size([100])])
    counts = []
    for rate in (1.0, 0.55, 0.1):
        exchange.residual.zero_()
        counts.append(int((exchange.mean(torch.ones(1, 100), rate) != 0).sum()))
    assert counts == [20, 11, 2]


@pytest.mark.parametrize("inertia", [1.0, 0.25])
def test_ef21_approaches_the_mean_of_gradients_that_stay(inertia):
    exchange = exchanges.EF21(0.5, inertia=inertia)
    exchange.start(2, [torch.Size([4])])
    rows = torch.tensor([[8.0, 4.0, -2.0, 1.0], [0.0, 4.0, 6.0, 8.0]])
    first = exchange.mean(rows, 1.0)
    assert first.tolist() == [4, 2, 3, 4]
    for _ in range(60):
        last = exchange.mean(rows, 1.0)
    torch.testing.assert_close(last, rows.mean(0))
    torch.testing.assert_close(exchange.estimates, rows)


def test_ef21_after_dense_steps_sends_only_what_has_changed():
    exchange = exchanges.EF21(0.25)
    exchange.start(1, [torch.Size([4])])
    rows = torch.tensor([[8.0, 4.0, 2.0, 1.0]])
    exchange.dense(rows, 1.0)
    assert exchange.mean(rows + torch.tensor([[0.0, 0.5, 2.0, 0.0]]), 1.0).tolist() == [8, 4, 4, 1]


def test_one_rank_that_exchanges_updates_trains_as_ever():
    losses = []
    for after in (False, True):
        method = Method(exchanges.Exchange, after=after)
        training = simulate.Training(tasks_of("gpt-0.1m", 1), method, 4e-3, 8)
        losses.append([training.step() for _ in range(4)])
    assert losses[0][-1] < losses[0][0] - 0.3
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


@pytest.mark.parametrize("name", [*PLAIN, *SPARSE])
def test_every_method_trains_on_digits(name):
    # A running mean is a tenth of the sum that momentum makes of the same gradients.
    run = {"steps": 20, "lr": 0.5 if name == "ef21-momentum" else 0.05}
    record = simulate.train(run, tasks_of("digits", 2), method_of(name, 0.1), points=2)
    assert [each["step"] for each in record["points"]] == [10, 20]
    assert record["points"][-1]["score"] > 25
    sent = record["points"][-1]["bytes"] - record["points"][0]["bytes"]
    dense = exchanges.dense_bytes(2, 4 * record["parameters"]) * 10
    # At this density a sketch is no smaller than the vector.
    assert (sent < 0.8 * dense) == (name not in ("dense", "true-topk", "sketch"))


@pytest.mark.long
@pytest.mark.loopback
def test_simulated_ranks_repeat_real_ones(tmp_path):
    into = tmp_path / "runs.jsonl"
    subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "4", str(EXAMPLE / "train.py"), "--into", str(into)),
            *("--task", "gpt-0.1m", "--shards", "alike", "--seeds", "1", "--steps", "12"),
            *("--methods", "dense", "4bit", "gtopk-merged", "topk"),
            *("--densities", "0.02"),
        ],
        env=environment(),
        check=True,
        timeout=WATCHDOG,
    )
    torch.set_num_threads(1)
    for line in into.read_text().splitlines():
        real = json.loads(line)
        method = method_of(real["method"], real["density"])
        run = {name: real[name] for name in sweep.Run._fields}
        record = simulate.train(run, tasks_of("gpt-0.1m", 4), method, points=12)
        scores, again = ([p["score"] for p in each["points"]] for each in (real, record))
        if real["method"] == "dense":  # DDP's buckets, of another layout, decide the order of sums
            assert again == pytest.approx(scores, rel=1e-6)
        else:
            assert again == scores
        sent, predicted = (
            each["points"][-1]["bytes"] - each["points"][5]["bytes"] for each in (real, record)
        )
        assert predicted == pytest.approx(sent, rel=0.05)


def test_text_is_long_and_pairs_of_characters_say_little():
    known = gpt.corpus()
    assert len(known.train) > 1e6
    assert 0.05 < len(known.held_out) / len(known.train) < 0.2
    assert 2.3 < gpt.bigram_loss() < 3.0
    assert gpt.docstrings('"""A."""\ndef f():\n    """B."""\n    "no"\n') == "A.\n\nB.\n\n"


@pytest.mark.parametrize(
    ("scores", "rate"),
    [
        ({}, 2),
        ({2: 3.0}, 4),
        ({2: 3.0, 4: 2.0}, 8),
        ({2: 3.0, 4: 2.0, 8: 3.0}, None),
        ({2: 3.0, 4: 2.5, 8: 2.0}, 16),
        ({2: 1.0, 4: 2.5, 8: 2.0}, 1),
        ({2: 3.0, 4: 2.5, 8: 2.0, 16: math.inf}, None),
        ({2: 8.0, 4: 7.0, 8: 6.0, 16: 5.0, 32: 4.0, 64: 3.0}, None),
    ],
)
def test_rates_grow_beyond_an_edge_that_is_best(scores, rate):
    assert sweep.next_rate(scores, [2, 4, 8]) == rate


def test_sweep_continues_where_it_stopped(tmp_path):
    into = tmp_path / "runs.jsonl"
    arguments = ["--task", "digits", "--ranks", "2", "--steps", "2", "--into", str(into)]
    arguments += ["--rates", "0.01", "0.02", "--growth", "0", "--methods", "dense", "topk@0.05"]
    sweep.main([*arguments, "--seeds", "1"])
    once = into.read_text().splitlines()
    into.write_text("\n".join(once[:-1]) + "\n" + once[-1][:30])  # the last one is cut short
    sweep.main([*arguments, "--seeds", "2"])
    done = into.read_text().splitlines()
    assert done[: len(once) - 1] == once[:-1]
    found = {sweep.run_of(each): each for each in records.read(into)}
    assert {run.seed for run in found} == {0, 1}
    assert {(run.method, run.density) for run in found} == {("dense", None), ("topk", 0.05)}
    assert sum(run.seed == 1 for run in found) == 2
    assert json.loads(once[-1]) in found.values()  # repeated, with the same scores


def test_best_rate_has_the_most_digits_right(tmp_path):
    into = tmp_path / "runs.jsonl"
    arguments = ["--task", "digits-conv", "--ranks", "2", "--steps", "30", "--into", str(into)]
    sweep.main([*arguments, "--rates", "1e-4", "0.02", "--growth", "0", "--methods", "dense"])
    found = records.read(into)
    (low,) = (each for each in found if each["lr"] == 1e-4)
    (high,) = (each for each in found if each["lr"] == 0.02 and each["seed"] == 0)
    assert records.final(low) < 30 < 60 < records.final(high)
    assert {each["lr"] for each in found if each["seed"] > 0} == {0.02}
    assert records.cost(high) < records.cost(low)


def test_unknown_methods_name_the_known_ones():
    assert sweep.named("topk@0.05") == ("topk", 0.05)
    assert sweep.named("dense") == ("dense", None)
    for text in ("nothing", "topk", "dense@0.1"):
        with pytest.raises(sweep.argparse.ArgumentTypeError, match=f"no method '{text}'.*dense"):
            sweep.named(text)


def record(method: str, seed: int, lr: float, score: float, sent: float, **more) -> dict:
    points = [{"step": i, "score": score, "bytes": sent * i} for i in (1, 2)]
    about = {"task": "gpt", "ranks": 4, "shards": "alike", "steps": 2, "parameters": 100}
    about |= {"unit": "nats", "bigrams": 2.6, "density": None}
    return {**about, "method": method, "seed": seed, "lr": lr, "points": points, **more}


def test_paired_table_in_points_where_more_is_better():
    more = {"lower": False, "unit": "% right"}
    runs = [
        *(record("dense", 0, lr, score, 600, **more) for lr, score in ((1, 90.0), (2, 97.0))),
        *(record("4bit", 0, lr, score, 80, **more) for lr, score in ((1, 96.5), (2, math.nan))),
    ]
    for each in runs:
        del each["bigrams"]
    ((cell, some),) = paired.cells_of(runs).items()
    text = paired.table(cell, some)
    assert "2 steps**; % right\n" in text
    assert "| score | worse than dense, points |" in text
    assert "| `dense` | 2 (edge) | 97.00 |" in text
    assert "| `4bit` | 1 (edge) | 96.50 | +0.50 |" in text
    assert "| `4bit` | **96.500** | 0.000 |" in paired.rates(some)


def test_paired_table_compares_seeds_at_each_best_rate():
    runs = [
        *(record("dense", 0, lr, score, 600) for lr, score in ((1, 2.2), (2, 2.0), (4, 2.1))),
        record("dense", 1, 2, 2.1, 600),
        *(record("topk", 0, lr, score, 60, density=0.05) for lr, score in ((1, 2.2), (2, 2.3))),
        record("topk", 1, 1, 2.31, 60, density=0.05),
        record("4bit", 0, 2, math.nan, 80),
    ]
    (cell, some), *others = paired.cells_of(runs).items()
    assert not others
    text = paired.table(cell, some)
    assert "100 parameters, 4 simulated ranks" in text
    assert "| `dense` | 2 | 2.050 ± 0.635 |  | 6 | 1.0 × | 2 |" in text
    row = "| `topk@0.05` | 1 (edge) | 2.255 ± 0.699 | +10.00 ± 0.00 | 0.6 | 10.0 × | 2 |"
    assert row in text
    assert "| `4bit` | 2 (edge) | inf | +inf | 0.8 | 7.5 × | 1 |" in text
    assert "| `dense` | 2.200 | **2.000** | 2.100 |" in paired.rates(some)
