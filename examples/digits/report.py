"""The comparison's table and picture, from the ranks' records.

Knows matplotlib; must not know where the records come from.
"""

from __future__ import annotations

import pathlib

# Loss is averaged over this many steps: one step's batch says little.
_SMOOTHING = 11
_COLUMNS = (
    ("", ""),
    ("accuracy", "on test"),
    ("step", "ms"),
    ("compute", "ms"),
    ("compress", "ms"),
    ("communicate", "ms"),
    ("sent", "kB/step"),
    ("sent", "MB/rank"),
    ("CPU", "s/rank"),
    ("cores", "busy"),
)
# Colour-blind safe (Okabe and Ito's palette), and told apart in grey by line style.
_STYLES = (("#0072B2", "-"), ("#E69F00", "--"), ("#CC79A7", "-."), ("#009E73", "-"))


def table(results: dict[str, list[dict]]) -> str:
    """Aligned rows, one per training and, if the density warms up, one more for what follows.

    Means over ranks. Milliseconds per step are the sum of the three columns after it.
    """
    rows = []
    for name, ranks in results.items():
        phases = range(len(ranks[0]["phases"]))
        rows.append([name, f"{ranks[0]['accuracy']:.2%}", *_costs(ranks, phases)])
        if len(phases) > 1:
            rows.append(["  after its warm-up", "", *_costs(ranks, phases[-1:])])
    head = [[column[0] for column in _COLUMNS], [column[1] for column in _COLUMNS]]
    widths = [max(len(row[column]) for row in head + rows) for column in range(len(head[0]))]

    def aligned(row: list[str]) -> str:
        first, *rest = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        return "  ".join([row[0].ljust(len(first)), *rest])

    lines = [aligned(row) for row in head]
    lines.append("-" * len(lines[0]))
    lines += [aligned(row) for row in rows]
    lines.append("sent: what the rank's network interface sent, headers included; kB = 1000 B")
    return "\n".join(lines)


def _costs(ranks: list[dict], phases: range) -> list[str]:
    def mean(key: str) -> float:
        """Per step, averaged over the phases' steps and over ranks."""
        steps = sum(ranks[0]["phases"][p]["steps"] for p in phases)
        total = sum(r["phases"][p][key] * r["phases"][p]["steps"] for r in ranks for p in phases)
        return total / steps / len(ranks)

    step, compress, communicate = mean("step"), mean("compress"), mean("communicate")
    cpu = sum(r["phases"][p]["cpu_seconds"] for r in ranks for p in phases) / len(ranks)
    sent = [r["phases"][p]["bytes_sent"] for r in ranks for p in phases]
    kilobytes = megabytes = "-"
    if None not in sent:
        per_rank = sum(sent) / len(ranks)
        steps = sum(ranks[0]["phases"][p]["steps"] for p in phases)
        kilobytes, megabytes = f"{per_rank / steps / 1e3:.1f}", f"{per_rank / 1e6:.1f}"
    times = (step, step - compress - communicate, compress, communicate)
    return [
        *(f"{1e3 * t:.2f}" for t in times),
        kilobytes,
        megabytes,
        f"{cpu:.1f}",
        f"{mean('cores_busy'):.0%}",
    ]


def draw(results: dict[str, list[dict]], path: pathlib.Path, title: str) -> None:
    """Writes the PNG: training loss, mean over ranks, over wall time."""
    import matplotlib  # here, as options are read before it is installed

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), dpi=150)
    for (name, ranks), (colour, line) in zip(results.items(), _STYLES, strict=True):
        losses = [sum(step) / len(step) for step in zip(*(r["losses"] for r in ranks), strict=True)]
        ends = ranks[0]["ends"]
        label = f"{name}: {ends[-1]:.0f} s, accuracy {ranks[0]['accuracy']:.1%}"
        axes.plot(ends, losses, color=colour, linewidth=0.6, alpha=0.25)
        axes.plot(ends, smoothed(losses), color=colour, linestyle=line, label=label)
        axes.plot(ends[-1], smoothed(losses)[-1], "o", color=colour, markersize=5)
    axes.set(
        xlabel="seconds of training",
        ylabel="training loss (mean over ranks)",
        yscale="log",
        title=f"ResNet-20 on digits: {title}",
    )
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def smoothed(losses: list[float]) -> list[float]:
    """The mean over a window centred on each step, narrower towards the ends."""
    reach = _SMOOTHING // 2
    windows = [losses[max(0, i - reach) : i + reach + 1] for i in range(len(losses))]
    return [sum(window) / len(window) for window in windows]
