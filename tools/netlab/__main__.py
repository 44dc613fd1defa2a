"""The command line: `netlab run`, `netlab probe` and `netlab check`.

    python -m netlab check
    python -m netlab run --hosts 4 --rate 100mbit -- python train.py
    python -m netlab probe --rate 100mbit
    python -m netlab probe --rate 200mbit --mtu 1500 --delay 25ms --loss 0.01%

(with tools/ on PYTHONPATH, or as `python tools/netlab …`). It uses only the package's public
interface.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import signal
import sys

if __package__ in (None, ""):
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from netlab.distance import measure
from netlab.hosts import Hosts, Loopback
from netlab.impairment import Impairment
from netlab.job import print_line
from netlab.lab import Lab, LabError, why_not
from netlab.probe import as_json, calibrate
from netlab.shape import Shape


def _impairment(arguments: argparse.Namespace) -> Impairment | None:
    asked = (arguments.delay, arguments.jitter, arguments.loss, arguments.forget)
    if asked == (None, None, None, None):
        return None
    return Impairment.of(
        arguments.delay or "0ms",
        arguments.jitter or "0ms",
        arguments.loss or "0%",
        reorder=arguments.reorder,
        seed=arguments.seed,
        forget=arguments.forget or "0s",
    )


def _sysctls(arguments: argparse.Namespace) -> dict[str, str]:
    pairs = [setting.partition("=") for setting in arguments.sysctl]
    if wrong := [key for key, equals, _ in pairs if not equals]:
        raise ValueError(f"sysctl {wrong[0]!r}: expected KEY=VALUE")
    return {key: value for key, _, value in pairs}


def _make(
    arguments: argparse.Namespace, hosts: int, ranks_per_host: int = 1, *, in_turn: bool = False
) -> Hosts:
    impairment = _impairment(arguments)
    if arguments.rate == "loopback":
        if impairment is not None:
            raise ValueError("loopback has no switch, so no delay and no loss: choose a rate")
        if ranks_per_host != 1:
            raise ValueError("ranks per host: loopback is one host, name its ranks by --hosts")
        return Loopback(hosts)
    shape = None
    if arguments.rate != "none":
        shape = Shape.of(arguments.rate, burst=arguments.burst, mtu=arguments.mtu)
    lab = Lab(
        hosts,
        shape,
        ranks_per_host=ranks_per_host,
        in_turn=in_turn,
        congestion_control=arguments.congestion_control,
        impairment=impairment,
        sysctls=_sysctls(arguments),
    )
    if lab.shape:
        kind = "calibrated" if lab.shape.calibrated else "NOT calibrated: run `netlab probe` first"
        print(
            f"# {hosts} hosts at {lab.shape.rate}, MTU {lab.shape.mtu}, "
            f"bucket {lab.shape.burst} B ({kind})",
            file=sys.stderr,
        )
    if impairment is not None:
        print(f"# delay: {impairment}; TCP {lab.congestion_control}", file=sys.stderr)
    return lab


def _say_switch(hosts: Hosts) -> None:
    if isinstance(hosts, Lab) and (counters := hosts.switch_counters()) is not None:
        print(f"# {counters}", file=sys.stderr)


def _run(arguments: argparse.Namespace) -> int:
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        print("netlab run: no command after --", file=sys.stderr)
        return 2
    with _make(
        arguments, arguments.hosts, arguments.ranks_per_host, in_turn=arguments.in_turn
    ) as hosts:
        before = hosts.counters()
        outcome = hosts.run(command, timeout=arguments.timeout, on_line=print_line)
        after = hosts.counters()
        _say_switch(hosts)
    for rank in outcome.ranks:
        line = (
            f"# rank {rank.rank}: exit {rank.returncode}, {rank.seconds:.2f} s, "
            f"cpu {rank.cpu_seconds:.2f} s"
        )
        print(line, file=sys.stderr)
    for host, (then, now) in enumerate(zip(before or (), after or (), strict=True)):
        carried = now - then
        print(
            f"# host {host}: sent {carried.tx_bytes} B, received {carried.rx_bytes} B",
            file=sys.stderr,
        )
    print(
        f"# machine's cores busy: {outcome.machine_cpu_share:.0%}"
        + (" (timed out)" if outcome.timed_out else ""),
        file=sys.stderr,
    )
    return 0 if outcome.ok else 1


def _probe(arguments: argparse.Namespace) -> int:
    with _make(arguments, 2) as hosts:
        if isinstance(hosts, Lab) and hosts.impairment is not None:
            print(measure(hosts, arguments.seconds, arguments.streams))
            _say_switch(hosts)
            return 0
        calibration = calibrate(hosts)
        # The calibrated bucket may pass freely, whatever bucket was requested.
        allowance = Shape.of(hosts.shape.rate).burst if hosts.shape else 0
    print(calibration.table())
    print(
        f"alpha {calibration.alpha * 1e6:.1f} us, beta {calibration.beta * 1e9:.3f} ns/B "
        f"({8e-6 / calibration.beta:.1f} Mbit/s), fitted to the ping-pong"
    )
    if arguments.json:
        pathlib.Path(arguments.json).write_text(
            json.dumps({"rate": arguments.rate, **as_json(calibration)}, indent=1) + "\n",
            encoding="utf-8",
        )
    wrong = calibration.disagreements(allowance)
    if wrong:
        print("gapped and back to back differ by more than 10 %: no claim from this lab")
        print("\n".join(wrong))
        return 1
    print(
        f"gapped and back to back agree within 10 % and {allowance} B; "
        f"within 10 % alone from {calibration.exact_from()} B on"
    )
    return 0


def _check(_: argparse.Namespace) -> int:
    reason = why_not()
    if reason is None:
        try:
            Lab(1).close()
        except LabError as error:
            reason = f"the network lab cannot be made here: {error}"
    if reason is not None:
        print(" ".join(reason.split()))
    return 0 if reason is None else 1


def _add_link(command: argparse.ArgumentParser) -> None:
    """The options of the links, which `run` and `probe` share."""
    command.add_argument("--rate", default="100mbit", help="100mbit, 1gbit, …, none, or loopback")
    command.add_argument("--burst", type=int, help="bytes, instead of the calibrated bucket")
    command.add_argument("--mtu", type=int, help="bytes, instead of the calibrated MTU")
    command.add_argument("--delay", help="25ms, one way: a round trip takes twice as long")
    command.add_argument("--jitter", help="2ms: each frame is delayed by 23 to 27 ms, in order")
    command.add_argument("--loss", help="0.01%%, of the frames each way")
    command.add_argument("--forget", help="5s: idle TCP connections are forgotten, as by a NAT")
    command.add_argument("--reorder", action="store_true", help="by jitter, frames may overtake")
    command.add_argument("--seed", type=int, default=1, help="replays jitter and losses")
    command.add_argument("--congestion-control", default="cubic", help="TCP's: cubic, reno, bbr")
    command.add_argument(
        "--sysctl", action="append", default=[], help="KEY=VALUE, set on every host; repeatable"
    )


def main() -> int:
    """Parses the command line and returns the exit code: 0, 1 (a rank or the probe failed), 2."""
    parser = argparse.ArgumentParser(prog="netlab", description="shaped hosts on one machine")
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run", help="run a command as the ranks of all hosts")
    run.add_argument("--hosts", type=int, default=4)
    run.add_argument(
        "--ranks-per-host", type=int, default=1, help="which share its memory and link"
    )
    run.add_argument("--in-turn", action="store_true", help="rank r is on host r mod hosts")
    _add_link(run)
    run.add_argument("--timeout", type=float, help="seconds until the watchdog ends the ranks")
    run.add_argument("command", nargs=argparse.REMAINDER, help="-- CMD ARGS…")
    run.set_defaults(action=_run)
    probe = commands.add_parser(
        "probe",
        help="check the shaping and fit alpha and beta; with delay or loss, measure round trips "
        "and plain TCP streams",
    )
    _add_link(probe)
    probe.add_argument("--json", help="also write the points to this file")
    probe.add_argument("--seconds", type=float, default=10, help="with delay or loss: of streams")
    probe.add_argument("--streams", type=int, default=1, help="with delay or loss: how many")
    probe.set_defaults(action=_probe)
    check = commands.add_parser("check", help="say whether a lab can be made here, and why not")
    check.set_defaults(action=_check)
    arguments = parser.parse_args()
    # SIGTERM ends this process like Ctrl-C, through the context managers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return arguments.action(arguments)
    except (LabError, ValueError) as error:
        print(f"netlab: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
