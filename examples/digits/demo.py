"""Trainings of one net, each rank a host of its own, compared.

Dense over gloo, over gtopk and in 4 bits, and gTop-k: what each costs per step, sends and reaches.
Started by tools/demo; with --outer, examples/outer/compare.py goes on. Knows the network lab and
train.py's command line; must not know torch.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import shutil
import signal
import sys
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "examples" / "outer")]

from netlab import Hosts, Lab, LabError, Loopback, Shape  # noqa: E402
from netlab.lab import why_not  # noqa: E402
from report import draw, table  # noqa: E402

HOSTS = 4


@dataclass(frozen=True)
class Run:
    """One training: its name and train.py's arguments."""

    name: str
    backend: str
    density: float = 0.0
    wire: str | None = None


def runs(density: float) -> list[Run]:
    """The trainings that the demo compares, the baseline first."""
    return [
        Run("dense over gloo", "gloo"),
        Run("dense over gtopk", "gtopk"),
        Run("dense in 4 bits", "gtopk", wire="4bit"),
        Run(f"gTop-k at {density:g}", "gtopk", density),
    ]


def train(hosts: Hosts, run: Run, options: argparse.Namespace, *, fold: int = 0) -> list[dict]:
    """Trains on all hosts and returns every rank's record. Raises RuntimeError with the ranks'
    output if one fails or if parameters differ between ranks."""
    records = options.output / "records" / f"{run.name.replace(' ', '-')}-fold{fold}"
    shutil.rmtree(records, ignore_errors=True)
    command = [
        *(sys.executable, str(ROOT / "examples/digits/train.py")),
        *("--backend", run.backend, "--density", run.density, "--epochs", options.epochs),
        *("--fold", fold, "--seed", fold, "--name", run.name, "--records", records),
    ]
    if run.wire:
        command += ["--wire", run.wire]
    if isinstance(hosts, Lab):
        command += ["--interface", hosts.interface]
    print(f"demo: {run.name}: starting {hosts.hosts} ranks", flush=True)
    # Rank 0 shows its progress bar; the other ranks' output is kept in case of a failure.
    outcome = hosts.run(command, timeout=options.timeout, show=[0], cwd=str(ROOT))
    if not outcome.ok:
        raise RuntimeError(f"{run.name} failed\n{outcome.report()}")
    ranks = [
        json.loads((records / f"rank{rank}.json").read_text(encoding="utf-8"))
        for rank in range(hosts.hosts)
    ]
    if len(set(ranks[0]["hashes"])) != 1:
        raise RuntimeError(f"{run.name}: parameters differ between ranks: {ranks[0]['hashes']}")
    return ranks


def make_hosts(bandwidth: str) -> tuple[Hosts, str]:
    """The hosts for `bandwidth`, and their description for a title."""
    reason = why_not()
    if bandwidth == "loopback" or reason is not None:
        if bandwidth != "loopback":
            print(f"demo: {reason}")
            print("demo: going on over loopback: no link is shaped, no rank's bytes are counted;")
            print("demo: what follows trains the same nets, but measures no network")
        return Loopback(HOSTS), f"{HOSTS} ranks over loopback, nothing shaped"
    if bandwidth == "none":
        return Lab(HOSTS, None), f"{HOSTS} hosts, links not shaped"
    shape = Shape.of(bandwidth)
    if not shape.calibrated:
        print(f"demo: {bandwidth} is not a calibrated rate (docs/lab.md): claim nothing from it")
    return Lab(HOSTS, shape), f"{HOSTS} hosts, links of {bandwidth}"


def demo(options: argparse.Namespace) -> int:
    """The trainings, the table and the picture."""
    options.output.mkdir(parents=True, exist_ok=True)
    hosts, title = make_hosts(options.bandwidth)
    results = {}
    with hosts:
        print(f"demo: ResNet-20 on scikit-learn's digits, {title}, {options.epochs} epochs each")
        for run in runs(options.density):
            results[run.name] = train(hosts, run, options)
    print()
    print(table(results))
    for name, ranks in results.items():
        print(
            f"{name}: all parameters bitwise equal on {len(ranks)} ranks "
            f"(sha256 {ranks[0]['hashes'][0][:16]})"
        )
    picture = options.output / "loss.png"
    draw(results, picture, title)
    print(f"loss over wall time: {picture}")
    return 0


def _bandwidth(text: str) -> str:
    if text not in ("none", "loopback"):
        try:
            Shape.of(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{error}; or none, or loopback") from None
    return text


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The demo's options."""
    parser = argparse.ArgumentParser(prog="tools/demo", description=__doc__.split("\n")[2])
    parser.add_argument(
        "--bandwidth",
        type=_bandwidth,
        help="of every host's link: 100mbit (default; with --outer 50mbit), 1gbit, …; none: "
        "namespaces without shaping; loopback: no namespaces, no root",
    )
    parser.add_argument("--density", type=float, help="of gTop-k, after the warm-up (0.01)")
    parser.add_argument("--epochs", type=int, help="of ResNet-20 (24)")
    parser.add_argument(
        "--outer",
        action="store_true",
        help="instead: a GPT by dense DDP, diloco and sparseloco, and its loss over time",
    )
    parser.add_argument("--steps", type=int, help="of the GPT (600)")
    parser.add_argument("--timeout", type=float, default=900, help="seconds until a run is ended")
    parser.add_argument(
        "--output", type=pathlib.Path, default=ROOT / "build/demo", help="for records and picture"
    )
    parser.add_argument(
        "--accuracy",
        type=pathlib.Path,
        nargs="?",
        const=ROOT / "docs/results/accuracy.md",
        metavar="FILE",
        help="instead: 5 seeds on 5 folds, dense and gTop-k, result written as markdown "
        "(default docs/results/accuracy.md)",
    )
    parser.add_argument("--parse-only", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    others = ("density", "epochs", "accuracy") if options.outer else ("steps",)
    for name in others:
        if getattr(options, name) is not None:
            which = "cannot be combined with" if options.outer else "needs"
            parser.error(f"--{name} {which} --outer")
    defaults = {"density": 0.01, "epochs": 24, "steps": 600}
    defaults["bandwidth"] = "50mbit" if options.outer else "100mbit"
    for name, default in defaults.items():
        if getattr(options, name) is None:
            setattr(options, name, default)
    return options


def main() -> int:
    """Runs what was asked for; the exit code is 1 if a run fails or a claim does not hold."""
    options = parse()
    if options.parse_only:
        return 0
    # SIGTERM ends the demo like Ctrl-C: through the lab's clean-up.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        if options.accuracy:
            from accuracy import compare_accuracy

            hosts, _ = make_hosts("none" if options.bandwidth == "100mbit" else options.bandwidth)
            with hosts:
                return compare_accuracy(hosts, options, runs(options.density), train)
        if options.outer:
            from compare import compare

            options.output.mkdir(parents=True, exist_ok=True)
            return compare(*make_hosts(options.bandwidth), options)
        return demo(options)
    except (LabError, RuntimeError, ValueError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
