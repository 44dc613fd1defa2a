"""tools/gpu-check: what is kept of earlier calls, and the page. No device is used."""

from __future__ import annotations

import json
from types import SimpleNamespace

import gpu_check.run
import pytest
from gpu_check.errors import CheckError, UsageError
from gpu_check.page import page
from gpu_check.parts import Part


def test_a_later_call_runs_what_is_not_done(tmp_path, monkeypatch) -> None:
    called = []

    def part(name: str) -> Part:
        def run(*_: object) -> dict:
            called.append(name)
            if name == "bits" and called.count("bits") == 1:
                raise CheckError("once")
            return {"calls": called.count(name)}

        return Part(run, 60)

    monkeypatch.setattr(gpu_check.run, "PARTS", {each: part(each) for each in ("bits", "training")})
    machine = SimpleNamespace(
        packed=tmp_path, device="fake", why_not=lambda: "", about=lambda: {"gpu": "one", "load": 0}
    )

    def results(*, again: bool = False, small: bool = False) -> tuple[int, dict]:
        options = SimpleNamespace(out=tmp_path, parts="all", small=small, minutes=1, again=again)
        code = gpu_check.run.run(machine, options)
        parts = json.loads((tmp_path / "results.json").read_text())["parts"]
        return code, {name: each.get("calls") for name, each in parts.items()}

    assert results() == (1, {"bits": None, "training": 1})
    assert results() == (0, {"bits": 2, "training": 1})
    assert results() == (0, {"bits": 2, "training": 1})
    assert results(again=True) == (0, {"bits": 3, "training": 2})
    with pytest.raises(UsageError, match=r"has results with small False, not True.*--again"):
        results(small=True)
    machine.about = lambda: {"gpu": "another", "load": 0}
    with pytest.raises(UsageError, match=r"has results of one, not another"):
        results()
    (tmp_path / "results.json").write_text('{"parts": ')
    with pytest.raises(UsageError, match=r"is not whole .*--again"):
        results()
    assert called == ["bits", "training", "bits", "bits", "training"]


def test_the_page_holds_figures_against_what_was_aimed_at() -> None:
    results = {
        "device": "cuda",
        "small": False,
        "packed": {"commit": "abc", "torch": "2.11"},
        "machine": {"gpu": "a GPU", "load": "0.1"},
        "parts": {
            "compress": {
                "copy_bytes_per_second": 4e12,
                "rows": [
                    {
                        "d": 25_000_000,
                        "k": 25_000,
                        "seconds": {"topk_and_masking": 2e-3, "gtopk": 4e-4},
                        "kernel_seconds": 3e-4,
                    }
                ],
            },
            "staging": {
                "pinned": [{"bytes": 8192, "seconds": 20e-6}],
                "ucx": [{"bytes": 8192, "seconds": 10e-6}],
            },
            "programs": {
                "allreduce": [
                    {
                        "algorithm": "topk",
                        "select": "exact",
                        "n": 9000,
                        "place": "device",
                        "seconds": 1e-3,
                        "wrong": 0,
                    }
                ],
                "pingpong": [{"layer": "calls", "bytes": 64, "seconds": 2e-5, "wrong": 1}],
            },
            "self_test": {
                "waits": "stream waits: refused",
                "rows": [{"dtype": "float32", "calls": 229, "seconds": 0.034}],
            },
            "first_call": {
                "rows": [{"dtype": "float32", "without": 2e-3, "with": 5e-2, "second": 1e-4}]
            },
            "racecheck": {"not_run": "compute-sanitizer is not installed here"},
        },
    }
    text = page(results)
    assert "| 25,000,000 | 25,000 | 2.000 | 0.400 | 0.300 | 0.150 | 5.0 | 2.00 |" in text
    assert "| 8,192 | 20.0 | 10.0 | 2.00 |" in text
    assert "stream waits: refused\n\n| dtype | calls | ms |" in text
    assert "| float32 | 229 | 34 |" in text
    assert "| float32 | 2.0 | 50.0 | 48.0 | 0.10 |" in text
    assert "| topk | exact | 9,000 | device | 1000.0 | 0 |" in text
    assert "| calls | 64 | 20.0 | 1 |" in text
    assert "not run: compute-sanitizer is not installed here" in text
