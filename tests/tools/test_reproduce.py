"""tools/reproduce: pages from committed records, and entries run for real."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys
from importlib.util import find_spec

import matplotlib
import pytest
import torch
from reproduce_entries import baselines, equal_budgets, gtopk_exchanges, steps, where_it_pays
from reproduce_entries.bytes_sent import PARAMETERS, demo_megabytes, fewest_bits, link_seconds
from reproduce_entries.codec_error import error, linear, statistical
from reproduce_entries.command import main, parse, records_of
from reproduce_entries.demo_ablation import largest, restored, transformed
from reproduce_entries.dgc import Laddered
from reproduce_entries.entry import Record
from reproduce_entries.gtopk_model import MODELS, costs
from reproduce_entries.lags_sgd import LAYERS, ONE, Layers, adaptive_counts, even_counts, parsed
from reproduce_entries.outer_members import DISTURBED, UNDISTURBED, checks, exchanges
from reproduce_entries.outer_utilisation import by_link, of_whole_rounds, share
from reproduce_entries.page import wrapped
from reproduce_entries.selection_cost import threshold
from reproduce_entries.sketched_sgd import BEST, WAYS
from reproduce_entries.table import ENTRIES
from reproduce_entries.trainings import behind, best_rate, scores
from reproduce_entries.where_it_pays import Work, dense, sparse

from helpers.paths import ROOT

RESULTS = ROOT / "docs" / "results"
WATCHDOG = 600
PACED = {"layer-wise": "0.85, 0.8", "adaptive": "0.74, 0.7"}
NEEDS_TORCHFT = pytest.mark.skipif(find_spec("torchft") is None, reason="torchft is not installed")


def drawing(path: pathlib.Path) -> str:
    """The plot with its ids numbered: they hash floats, whose last bits depend on the CPU."""
    numbers: dict[str, str] = {}

    def number(found: re.Match) -> str:
        return numbers.setdefault(found.group(), f"{len(numbers):010}")

    return re.sub(r"[0-9a-f]{10}(?=[\")])", number, path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_pages_are_those_of_the_committed_records(entry, tmp_path):
    (tmp_path / "records").mkdir()
    records = RESULTS / "records" / f"{entry.name}.jsonl"
    (tmp_path / "records" / records.name).write_bytes(records.read_bytes())
    assert main(["--pages", "--into", str(tmp_path), entry.name]) == 0
    made = f"{entry.name}.md"
    assert (tmp_path / made).read_text() == (RESULTS / made).read_text()
    drawn = f"{entry.name}.svg"
    if f"Matplotlib v{matplotlib.__version__}," in (RESULTS / drawn).read_text():
        assert drawing(tmp_path / drawn) == drawing(RESULTS / drawn)


@pytest.mark.long
@pytest.mark.loopback
@pytest.mark.parametrize(
    "name",
    [
        "bytes",
        "theorem1",
        pytest.param("outer-members", marks=NEEDS_TORCHFT),
        "outer-pruned",
        pytest.param("outer-utilisation", marks=pytest.mark.network),
        "where-it-pays",
    ],
)
def test_entry_runs_and_does_not_repeat_what_has_a_record(name, tmp_path):
    command = [sys.executable, str(ROOT / "tools" / "reproduce"), "--quick", name]
    for _ in range(2):
        subprocess.run([*command, "--into", str(tmp_path)], check=True, timeout=WATCHDOG)
    lines = (tmp_path / "records" / f"{name}.jsonl").read_text().splitlines()
    cells = [json.loads(line)["cell"] for line in lines]
    (entry,) = (each for each in ENTRIES if each.name == name)
    assert cells == entry.cells(True)
    assert "**Quick" in (tmp_path / f"{name}.md").read_text()


def test_page_of_cells_without_records_is_not_made(tmp_path, capsys):
    assert main(["--pages", "--into", str(tmp_path), "bytes"]) == 1
    assert "bytes has cells without a record" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_list_prints_the_plan_alone(capsys):
    assert main(["--list"]) == 0
    said = capsys.readouterr().out
    assert said.count("**Refuted if**") == said.count("**Claim.**") == len(ENTRIES)
    assert "$" not in said


def test_unknown_entry_names_the_known_ones(capsys):
    with pytest.raises(SystemExit):
        parse(["nothing"])
    assert "no entry 'nothing': there are bytes" in capsys.readouterr().err


def test_published_arithmetic():
    assert demo_megabytes(PARAMETERS["1B"], 16) == pytest.approx(55.16, abs=0.005)
    assert demo_megabytes(1e6, 0) == 2
    assert fewest_bits(64) == pytest.approx(7.36, abs=0.005)
    assert fewest_bits(1) == pytest.approx(12)
    assert link_seconds(8e6, 10, 3, 1e6) == pytest.approx((10 / 110, 20 / 500))
    tree = {name: 1e3 * costs(model.parameters, 32, 8)["tree"] for name, model in MODELS.items()}
    assert tree == pytest.approx(
        {"VGG-16": 14.9, "ResNet-20": 4.6, "AlexNet": 48.4, "ResNet-50": 22.8}, rel=0.02
    )


def test_statistical_two_bit_quantizer_is_exact_on_two_values():
    x = torch.tensor([1.0, -1.0] * 50)
    decoded, bins = statistical(x)
    torch.testing.assert_close(decoded, x)
    assert bins == [0, 0.5, 0, 0.5]  # 0 is offset to the third bin
    wide = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    assert 0 < error(statistical(wide)[0], wide) < error(linear(wide), wide) < 1


@pytest.mark.parametrize("kind", ["dct", "random", "none"])
def test_transforms_are_orthogonal(kind):
    tiles = torch.randn(3, 64, 16, generator=torch.Generator().manual_seed(1))
    there = transformed(tiles, kind)
    torch.testing.assert_close(restored(there, kind), tiles)
    torch.testing.assert_close(there.norm(), tiles.norm())
    assert torch.equal(there, tiles) == (kind == "none")


def test_largest_of_each_tile():
    tiles = torch.tensor([[[1.0, -3.0], [2.0, 0.5]], [[0.0, 5.0], [6.0, -7.0]]])
    assert largest(tiles, 2).tolist() == [[[0, -3], [2, 0]], [[0, 0], [6, -7]]]
    assert torch.equal(largest(tiles, 9), tiles)


def test_steps_hide_what_fits_behind_the_backward():
    work = Work(1e9, 3.0)  # a backward of 2 s; a ring of 4 ranks sends 48 Gbit
    assert dense(work, 4, 10) == pytest.approx(1 + 4.8, rel=1e-3)
    assert dense(work, 4, 100) == dense(work, 4, 100, value_bytes=2) == 3
    assert sparse(work, 4, 100, 0.01, free=True) == 3
    # 1.05 s of selecting, and two rounds of 10 M entries: 5.03 bytes and 12.3 ns each.
    assert sparse(work, 4, 10, 0.01) == pytest.approx(3 + 1.05 + 2 * (0.04024 + 0.123), rel=1e-3)


def test_shares_of_time_with_a_link():
    cell = {"pace": 0.2, "megabits": 50}
    assert share(cell, {"step": 0.25}) == pytest.approx(80)
    assert by_link(cell, {"bytes": 1.25e6}) == pytest.approx(50)
    # 180 steps of 1 s and an exchange of 180 s are half; of 128 steps the exchange leaves less.
    assert of_whole_rounds(50) == pytest.approx(100 * 128 / (128 + 180))


@pytest.mark.parametrize(("digest", "hold"), [("a", [True] * 3), ("b", [False, True, True])])
def test_replicas_that_differ_after_an_exchange_refute_the_entry(digest, hold):
    said = [
        {"replica": 0, "seconds": 1.0, "step": 20, "replicas": 4, "digest": "a"},
        {"replica": 4, "seconds": 2.0, "step": 20, "replicas": 4, "digest": digest},
        {"replica": 2, "seconds": 2.0, "step": 20, "replicas": 4, "digest": "a"},
        {"replica": 3, "seconds": 0.5, "step": 20, "replicas": 4, "digest": "a"},
    ]
    said[0]["held_out_loss"] = 2.0
    found = exchanges(said)
    assert (found[0]["replicas"], found[0]["seconds"], found[0]["loss"]) == ([0, 2, 3, 4], 0.5, 2)
    result = {"exchanges": found, "events": [], "errors": []}
    calm = {"exchanges": exchanges(said[:1]), "events": [], "errors": []}
    records = [
        Record({"part": part, "steps": 20}, each, "2026-01-01", 1.0, "")
        for part, each in ((UNDISTURBED, calm), (DISTURBED, result))
    ]
    assert [each.holds for each in checks(records)] == hold


def trained(way: str, lr: float, *found: float) -> list[Record]:
    """A record for each seed."""
    return [
        Record({"part": way, "lr": lr, "seed": seed}, {"score": score}, "", 0.0, "")
        for seed, score in enumerate(found)
    ]


def test_ways_are_compared_at_their_best_rates_seed_by_seed():
    dense = [*trained("dense", 0.1, 90, 92), *trained("dense", 0.2, 91, 90)]
    assert best_rate(dense, "dense") == 0.1
    chosen = [*trained("few", 0.1, 89.0), *trained("few", 0.2, 88, 92)]
    assert best_rate(chosen, "few") == 0.2  # the other rate has one seed
    assert behind([*dense, *chosen], "few") == [2, 0]


def test_chosen_rates_are_the_first_seeds_best():
    (entry,) = (each for each in ENTRIES if each.name == "sketched-sgd")
    records = records_of(entry, RESULTS, entry.cells(False))
    for way in WAYS:
        first = {lr: seeds[0] for lr, seeds in scores(records, way).items()}
        assert len(first) >= 3
        assert first[BEST[way]] == max(first.values())


def test_layers_have_as_many_entries_in_all():
    sizes = [1280, 32768, 256, 16384]
    adaptive = adaptive_counts(sizes, 0.01)
    assert all(0.002 < k / size < 0.05 for k, size in zip(adaptive, sizes, strict=True))
    assert adaptive[0] / sizes[0] > 3 * adaptive[-1] / sizes[-1]  # the last hides behind nothing
    assert sum(even_counts(sizes, sum(adaptive))) == sum(adaptive)


def test_delta_is_what_is_left_over_what_random_k_leaves():
    one = Layers(ONE, density=1.0)  # a quarter of it, as nothing follows
    one.start(2, [torch.Size([4])])
    assert one.counts == [1]
    one.mean(torch.tensor([[3.0, 1, 0, 0], [-3.0, 1, 0, 0]]), 1.0)
    assert one.deltas() == [pytest.approx(4 / 3)]  # the selections cancel, and nothing else is sent
    one.mean(torch.tensor([[0.0, 9, 0, 0], [0.0, 9, 0, 0]]), 1.0)
    assert one.deltas() == [0]
    layers = Layers(LAYERS, "gtopk", 0.5)
    layers.start(2, [torch.Size([4]), torch.Size([6])])
    assert len(layers.parts) == 2


def test_ladder_is_climbed_down():
    exchange = Laddered(0.001, stage=2)
    exchange.start(1, [torch.Size([1000])])
    sent = []
    for _ in range(10):
        mean = exchange.mean(torch.rand(1, 1000), 1.0)
        sent.append(int(mean.count_nonzero()))
    assert sent == [250, 250, 63, 63, 16, 16, 4, 4, 1, 1]


def test_benchmark_of_paced_layers_is_read():
    rows = ("no_sync 158.00 1", "model 251.00 1", "layer-wise 210.00 1", "adaptive 184.00 1")
    ratios = [f"# {n} over model, turn by turn: median {r} to 0.95" for n, r in PACED.items()]
    said = "\n".join((*rows, *ratios, "# of rank 0, medians", "model 9.0", "# cores busy 85%"))
    found = parsed(said)
    assert list(found["ms"].values()) == [158, 251, 210, 184]
    assert found["over_one"] == {"layer-wise": [0.85, 0.8, 0.95], "adaptive": [0.74, 0.7, 0.95]}
    assert found["busy"] == 0.85


def test_baselines_are_read_from_the_benchmarks_table():
    rows = [
        f"{way:24}   {i}7.0   {i}5.5   0.00   0.00   {i}9.5"
        for i, way in enumerate(baselines.WAYS, 1)
    ]
    said = "\n".join(
        ["no_sync 5.0 4.0 0.0 0.0 0.1 ", *rows, "# of rank 0", "gloo 1 2", "cores busy 40%"]
    )
    found = steps.parsed(said, baselines.WAYS)
    assert found["busy"] == 0.4
    assert found["ways"]["no_sync"] == [5.0, 4.0, 0.1]
    assert found["ways"]["gloo-4"] == [27.0, 25.5, 29.5]
    slower = {
        **found,
        "ways": {way: [2 * each[0], *each[1:]] for way, each in found["ways"].items()},
    }
    cells = baselines.cells(False)
    records = [
        Record(*pair, "", 0, "") for pair in zip(cells, [slower, found, slower], strict=True)
    ]
    assert baselines.best(records, "gloo") == (17.0, 15.5, 19.5, 1.0)


def test_program_that_was_not_built_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(steps, "BUILT", tmp_path)
    with pytest.raises(RuntimeError, match="--target gtopk-bench-exchange"):
        steps.program("gtopk-bench-exchange")


def test_dense_benchmark_is_read():
    rows = (
        "backend min(ms) p50(ms)",
        "  gtopk  10.0  12.5  13.0  1.0",
        "   gloo 9.0 14.0 15.0 1.0",
    )
    text = "\n".join(("# dense", *rows, "gtopk/gloo pair by pair: min 1", "# cores busy 40%"))
    assert gtopk_exchanges.dense_parsed(text) == {"busy": 0.4, "gtopk": 0.0125, "gloo": 0.014}


def test_exchange_that_was_run_precedes_the_virtual_one():
    about = {"model": "AlexNet", "d": 61_100_000}
    lists = {"part": "lists", **about, "rate": "1gbit", "ranks": 4}
    virtual = {"4": {"links": 0.005, "computing": 0.001}, "8": {"links": 0.007, "computing": 0.002}}
    records = [
        Record(lists, {"mean_seconds": 0.008, "model_seconds": 0.005, "busy": 0.5}, "", 0.0, ""),
        Record({"part": "virtual", **about}, virtual, "", 0.0, ""),
    ]
    assert gtopk_exchanges.exchange_seconds(records, "AlexNet", 4) == 0.008
    assert gtopk_exchanges.exchange_seconds(records, "AlexNet", 8) == pytest.approx(0.009)
    assert gtopk_exchanges.exchange_seconds(records, "VGG-16", 8) is None
    assert gtopk_exchanges.over_link(records) == {("AlexNet", "1gbit", 4): pytest.approx(1.6)}
    # A ring of 4 ranks sends 1.5 times all 4 d bytes.
    assert gtopk_exchanges.wire_speed(1e6, 4) == pytest.approx(0.048)


def test_choice_of_the_model_is_judged_by_measured_steps():
    point = where_it_pays.POINTS[0]
    cell = {"part": "run", "hosts": 4, "turns": 7, **point._asdict()}
    ways = {"no_sync": [150], "dense": [900], "bf16": [190], "model": [200], "default unit": [180]}
    records = [Record(cell, {"ways": ways, "busy": 0.3}, "", 0.0, "")]
    (found,) = where_it_pays.compared(records)
    assert (found.chosen, found.fastest) == ("0.01", "bf16")
    assert found.lost == pytest.approx(200 / 190 - 1)  # which is more than 5 %


def dense_trainings(**losses: float) -> list[Record]:
    """Of the smaller net, by steps; both seeds end alike but for a tenth."""
    cells = [
        (equal_budgets.training("gpt-0.1m", "dense", int(steps[1:]), 0.01, seed), loss + seed / 10)
        for steps, loss in losses.items()
        for seed in (0, 1)
    ]
    return [
        Record(cell, {"loss": loss, "bytes": 6.0 * cell["steps"], "parameters": 1}, "", 0.0, "")
        for cell, loss in cells
    ]


def test_dense_between_two_lengths_is_read_off_in_the_logarithm(monkeypatch):
    monkeypatch.setattr(equal_budgets, "recorded", lambda name: ())
    records = dense_trainings(_25=3.0, _100=2.0)
    assert equal_budgets.dense_losses(records, "gpt-0.1m", 50) == pytest.approx({0: 2.5, 1: 2.6})
    assert equal_budgets.dense_losses(records, "gpt-0.1m", 5)[0] == 3
    assert equal_budgets.dense_losses(records, "gpt-0.1m", 1000)[1] == pytest.approx(2.1)


def test_budget_of_bytes_buys_twice_as_many_steps_in_bfloat16(monkeypatch):
    monkeypatch.setattr(equal_budgets, "recorded", lambda name: ())
    records = dense_trainings(_75=3.0, _150=2.5, _300=2.0)
    for seed in (0, 1):
        cell = equal_budgets.training("gpt-0.1m", "4bit", 300, 0.01, seed)
        result = {"loss": 2.1 + seed / 10, "bytes": 450.0, "parameters": 1}
        records.append(Record(cell, result, "", 0.0, ""))
    found = equal_budgets.beside(records, "gpt-0.1m", equal_budgets.CODED[1], "bytes")
    assert found.steps == pytest.approx({"dense": 75, "bf16": 150})
    assert found.apart["dense"] == pytest.approx([-30, 100 * (2.2 / 3.1 - 1)])
    assert found.apart["bf16"] == pytest.approx([-16, 100 * (2.2 / 2.6 - 1)])


def test_best_rate_of_each_dense_length_lies_between_others():
    (entry,) = (each for each in ENTRIES if each.name == "equal-budgets")
    records = records_of(entry, RESULTS, entry.cells(False))
    for task, net in equal_budgets.NETS.items():
        for count, rates in net.shorter.items():
            found = equal_budgets.best(records, task, "dense", count)[0].lr
            assert min(rates) < found < max(rates) or rates == (found,)


def test_gaussian_threshold_fits_a_normal_vector_and_no_other():
    u = torch.randn(100_000, generator=torch.Generator().manual_seed(2))
    assert int((u.abs() > threshold(u, 1000)).sum()) == pytest.approx(1000, rel=0.1)
    signs = torch.where(u > 0, 1.0, -1.0)
    assert int((signs.abs() > threshold(signs, 1000)).sum()) in (0, 100_000)


def test_prose_is_wrapped_and_tables_are_not():
    assert wrapped("- a\n  b\n- " + "c " * 80).splitlines()[0] == "- a b"
    assert all(len(line) <= 100 for line in wrapped("word " * 100).splitlines())
    assert wrapped("| a  b |") == "| a  b |"
