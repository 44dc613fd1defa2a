"""Entry `outer-members`: replicas are killed, stopped and added while an outer optimizer trains."""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from reproduce_entries.conducted import Conducted, Line
from reproduce_entries.entry import Cell, Check, Entry, Records, Result
from reproduce_entries.page import COLOURS, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

UNDISTURBED, DISTURBED = "undisturbed", "disturbed"
REPLICAS = 4
KILLED, STOPPED, JOINS = 1, 2, 4
ROUNDS_AWAY = 2
WORSE = 5.0  # per cent by which the disturbed run's loss may be worse

Event = dict[str, Any]


def cells(quick: bool) -> list[Cell]:
    shared = {"kind": "measured", "preset": "diloco", "inner_steps": 20}
    shared["steps"] = 160 if quick else 800
    return [{"part": part, **shared} for part in (UNDISTURBED, DISTURBED)]


def disturb(replicas: Conducted, steps: int, inner_steps: int) -> list[Event]:
    """Kill one at a fifth of the steps, stop one at two fifths, add one after three fifths."""
    events = []

    def note(what: str, replica: int) -> None:
        last = max(each["step"] for each in replicas.lines)
        events.append({"what": what, "replica": replica, "step": last})

    replicas.until(lambda: replicas.has_reached(steps // 5))
    replicas.kill(KILLED)
    note("killed", KILLED)
    replicas.until(lambda: replicas.has_reached(2 * steps // 5, STOPPED))
    replicas.stop(STOPPED)
    note("stopped", STOPPED)
    ends = events[-1]["step"] + ROUNDS_AWAY * inner_steps
    replicas.until(lambda: replicas.has_reached(ends))
    replicas.go_on(STOPPED)
    note("goes on", STOPPED)
    replicas.until(lambda: replicas.has_reached(3 * steps // 5))
    replicas.join(JOINS)
    note("joins", JOINS)
    return events


def run(cell: Cell) -> Result:
    options = ("preset", "inner_steps", "steps")
    given = [f"--{name.replace('_', '-')}={cell[name]}" for name in options]
    with Conducted(*given) as replicas:
        for replica in range(REPLICAS):
            replicas.start(replica)
        events = []
        if cell["part"] == DISTURBED:
            replicas.start(JOINS)
        replicas.join(*range(REPLICAS))
        if cell["part"] == DISTURBED:
            events = disturb(replicas, cell["steps"], cell["inner_steps"])
        replicas.all_end()
    lines = [each for each in replicas.lines if "digest" in each]
    return {"events": events, "exchanges": exchanges(lines), "errors": errors(replicas.lines)}


def exchanges(lines: list[Line]) -> list[dict[str, Any]]:
    """Return, for each step with an exchange, the replicas in it and their parameters."""
    by_step: dict[int, list[Line]] = defaultdict(list)
    for each in lines:
        by_step[each["step"]].append(each)
    return [
        {
            "step": step,
            "seconds": min(each["seconds"] for each in said),
            "replicas": sorted(each["replica"] for each in said),
            "size": max(each["replicas"] for each in said),
            "digests": sorted({each["digest"] for each in said}),
            "loss": next((each["held_out_loss"] for each in said if "held_out_loss" in each), None),
        }
        for step, said in sorted(by_step.items())
    ]


def errors(lines: list[Line]) -> list[Line]:
    """Return the errors of exchanges that were repeated."""
    return [each for each in lines if "error" in each]


def result_of(records: Records, part: str) -> Result:
    return next(each.result for each in records if each.cell["part"] == part)


def checks(records: Records) -> list[Check]:
    steps = records[0].cell["steps"]
    calm, torn = (result_of(records, part) for part in (UNDISTURBED, DISTURBED))
    every = [each for result in (calm, torn) for each in result["exchanges"]]
    apart = [each for each in every if len(each["digests"]) > 1]
    last = torn["exchanges"][-1]
    ends = last["step"] >= steps and last["replicas"] == [0, 2, 3, JOINS]
    loss, undisturbed = last["loss"], calm["exchanges"][-1]["loss"]
    worse = 100 * (loss / undisturbed - 1)
    said = sum(len(each["replicas"]) for each in every)
    return [
        Check(
            not apart,
            f"{len(every) - len(apart)} of {len(every)} exchanges left the same bits on all "
            f"replicas that took part ({said} digests).",
        ),
        Check(
            ends,
            f"replicas {', '.join(map(str, last['replicas']))} ended at step {last['step']}.",
        ),
        Check(
            worse <= WORSE,
            f"the loss ended at {loss:.3f}, undisturbed at {undisturbed:.3f} ({worse:+.1f} %).",
        ),
    ]


def fields(records: Records) -> dict[str, str]:
    torn = result_of(records, DISTURBED)
    found = torn["exchanges"]
    rows = []
    for event in torn["events"]:
        after = [each for each in found if each["step"] > event["step"]]
        sizes = " → ".join(str(each["size"]) for each in after[:4])
        said = f"replica {event['replica']} {event['what']}"
        rows.append((str(event["step"]), said, sizes))
    times = [each["seconds"] for each in found]
    waits = [after - before for before, after in itertools.pairwise(times)]
    return {
        "events": table(("after step", "", "replicas in the next exchanges"), rows),
        "median": f"{statistics.median(waits):.1f}",
        "longest": f"{max(waits):.1f}",
        "repeated": str(len(torn["errors"])),
    }


def draw(records: Records, figure: Figure) -> None:
    axes = figure.subplots()
    for colour, part in zip(COLOURS, (UNDISTURBED, DISTURBED), strict=False):
        found = [each for each in result_of(records, part)["exchanges"] if each["loss"]]
        steps, losses = zip(*((each["step"], each["loss"]) for each in found), strict=True)
        axes.plot(steps, losses, color=colour, linewidth=1, label=part)
    for event in result_of(records, DISTURBED)["events"]:
        axes.axvline(event["step"], color="#999999", linewidth=0.8, linestyle=":")
        text = f"replica {event['replica']} {event['what']}"
        where = (event["step"], 0.97)
        across = axes.get_xaxis_transform()
        axes.annotate(text, where, xycoords=across, rotation=90, va="top", ha="right", fontsize=7)
    axes.set_ylim(top=3.6)
    axes.set_xlabel("inner steps")
    axes.set_ylabel("held-out loss, nats a character")
    axes.legend(fontsize=7)


OUTER_MEMBERS = Entry("outer-members", cells, run, checks, fields, draw)
