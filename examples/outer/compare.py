"""Three trainings of one GPT, each replica a host of its own: dense DDP, diloco and sparseloco.

What each takes, sends and reaches; `tools/demo --outer` starts it. Knows the network lab and
train.py's command line; must not know torch.
"""

from __future__ import annotations

import json
import pathlib
import sys
from typing import TYPE_CHECKING, Any

from draw_curves import Curve, svg

if TYPE_CHECKING:
    import argparse

    from netlab import Hosts

PROGRAM = pathlib.Path(__file__).resolve().parent / "train.py"
# The inner learning rates are the best ones of docs/results/outer-loss.md.
RUNS = {
    "dense DDP": ("--preset=dense", "--inner-lr=8e-3"),
    "diloco, H = 30": ("--preset=diloco", "--inner-steps=30", "--inner-lr=4e-3"),
    "sparseloco, H = 30": ("--preset=sparseloco", "--inner-steps=30", "--inner-lr=4e-3"),
}

Record = dict[str, Any]


def train(hosts: Hosts, name: str, options: argparse.Namespace) -> Record:
    """Trains on all hosts; returns the report, what hosts sent, and how busy the cores were.

    Raises RuntimeError with the ranks' output if one fails, or if shared parameters differ.
    """
    file = options.output / f"{PROGRAM.stem}.json"
    file.unlink(missing_ok=True)
    more = ("--steps", options.steps, "--name", name, "--record", file)
    print(f"demo: {name}: starting {hosts.hosts} replicas", flush=True)
    before = hosts.counters()
    outcome = hosts.run(
        [sys.executable, str(PROGRAM), *RUNS[name], *more], timeout=options.timeout, show=[0]
    )
    after = hosts.counters()
    if not outcome.ok:
        raise RuntimeError(f"{name} failed\n{outcome.report()}")
    report = json.loads(file.read_text(encoding="utf-8"))
    if not report["shared_parameters_equal"]:
        raise RuntimeError(f"{name}: shared parameters differ between replicas")
    sent = None
    if before and after:
        found = zip(before, after, strict=True)
        sent = sum((now - then).tx_bytes for then, now in found) / hosts.hosts
    return {
        "name": name,
        "steps": options.steps,
        "dense_steps": report["dense_steps"],
        "parameters": report["parameters"],
        "seconds": round(report["seconds"], 1),
        "megabytes": None if sent is None else round(sent / 1e6, 2),
        "cpu_seconds": round(sum(rank.cpu_seconds for rank in outcome.ranks) / hosts.hosts, 1),
        "cores_busy": round(outcome.machine_cpu_share, 2),
        "points": [[step, round(loss, 4), round(s, 2)] for step, loss, s in report["points"]],
    }


def table(records: list[Record]) -> str:
    """In markdown, a row for each training."""
    rows = [
        ("", "seconds", "held-out loss", "sent (MB a host)", "CPU (s a replica)", "cores busy"),
        ("---",) * 6,
    ]
    for each in records:
        sent = "-" if each["megabytes"] is None else f"{each['megabytes']:,.1f}"
        name, seconds, loss = each["name"], f"{each['seconds']:.0f}", f"{each['points'][-1][1]:.3f}"
        busy = f"{each['cores_busy']:.0%}".replace("%", " %")
        rows.append((name, seconds, loss, sent, f"{each['cpu_seconds']:.0f}", busy))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def picture(title: str, records: list[Record]) -> str:
    """The SVG of loss over time."""
    curves = [
        Curve(
            f"{each['name']}: {each['seconds']:.0f} s, loss {each['points'][-1][1]:.2f}",
            [(seconds, loss) for _, loss, seconds in each["points"]],
        )
        for each in records
    ]
    return svg(title, "seconds of training", "held-out loss, nats a character", curves)


def compare(hosts: Hosts, links: str, options: argparse.Namespace) -> int:
    """The trainings, their table and their picture."""
    with hosts:
        title = f"A GPT by {options.steps} steps: {links}"
        print(f"demo: {title}")
        records = [train(hosts, name, options) for name in RUNS]
    print(f"\n{table(records)}\n")
    print(f"shared parameters are bitwise equal on all {hosts.hosts} replicas")
    record = {"title": title, "runs": records}
    (options.output / "outer.json").write_text(json.dumps(record) + "\n", encoding="utf-8")
    drawn = options.output / "outer.svg"
    drawn.write_text(picture(title, records), encoding="utf-8")
    print(f"loss over time: {drawn}")
    return 0
