"""Draws a machine from the output of gtopk-info [--topology FILE.xml] --json, for tools/plot.

Each NUMA node is a box with its cores: blue cores have an engine's thread bound to them, and this
process may not use white cores. Above a node are its NICs and GPUs; a frame holds GPUs that have
the same nearest NICs, and those NICs. A NIC is blue if the plan wants a rank to use it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from matplotlib import pyplot
from matplotlib.patches import Rectangle

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ACROSS = 8  # cores in a row
_ROW = 4  # devices in a row
_BLUE, _GREY, _GREEN = "#0072B2", "#e8e8e8", "#dcebdc"

Device = dict[str, Any]


class Frame:
    """GPUs and the NICs nearest to all of them, or a NIC that is nearest to no GPU."""

    def __init__(self, gpus: list[Device], nics: list[Device]) -> None:
        self.nics = [nics[at : at + _ROW] for at in range(0, len(nics), _ROW)]
        self.rows = [*self.nics, *(gpus[at : at + _ROW] for at in range(0, len(gpus), _ROW))]
        self.height = 0.2 + 1.2 * len(self.rows)


def plans_of(record: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return each local rank's plan, by its name in the picture."""
    if "plan" in record:
        return {"this rank": record["plan"]}
    return {f"rank {rank}": plan for rank, plan in enumerate(record["plans"])}


def nodes_of(topology: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the NUMA nodes, or one of all cores if the machine reports none."""
    whole = {"number": 0, "cores": topology["cores"], "memory_bytes": 0}
    return topology["nodes"] or [whole]


def frames_of(topology: dict[str, Any]) -> list[Frame]:
    """Return frames that contain every NIC and GPU once."""
    nics = {each["name"]: each for each in topology["nics"]}
    near: dict[tuple[str, ...], list[Device]] = {}
    far: dict[tuple[int, ...], list[Device]] = {}
    for gpu in topology["gpus"]:
        names = tuple(name for name in gpu.get("nics", ()) if name in nics)
        if names and nics[names[0]]["cores"] == gpu["cores"]:
            # A NIC that is nearest to GPUs of two frames is put in the first.
            key = next((group for group in near if {*names} & {*group}), names)
            near.setdefault(key, []).append(gpu)
        else:
            far.setdefault(tuple(gpu["cores"]), []).append(gpu)
    frames = [Frame(gpus, [nics.pop(name) for name in key]) for key, gpus in near.items()]
    frames += [Frame(gpus, []) for gpus in far.values()]
    return frames + [Frame([], [each]) for each in nics.values()]


def home_of(frame: Frame, nodes: list[dict[str, Any]]) -> int:
    """Return the position of the node with all cores near its first device, or len(nodes)."""
    near = set(frame.rows[0][0]["cores"])
    homes = [at for at, node in enumerate(nodes) if near and near <= set(node["cores"])]
    return homes[0] if len(homes) == 1 else len(nodes)


def draw_machine(name: str, record: dict[str, Any]) -> None:
    """Draw nodes from left to right, and on their right devices near none or several of them."""
    topology, plans = record["topology"], plans_of(record)
    nodes, frames = nodes_of(topology), frames_of(topology)
    homes = [home_of(each, nodes) for each in frames]
    columns = max([len(nodes), *(home + 1 for home in homes)])
    base = max(math.ceil(len(node["cores"]) / _ACROSS) for node in nodes) + 1.0
    tops = [base + 0.3] * columns
    for frame, home in zip(frames, homes, strict=True):
        tops[home] += frame.height + 0.2
    _, axes = pyplot.subplots(figsize=(1 + 4 * columns, 1 + 0.55 * max(tops)))
    axes.set(xlim=(0, columns), ylim=(-0.1, max(tops)))
    axes.axis("off")
    axes.set_title(f"{name}: {len(topology['cores'])} cores, by {topology['source']}")
    bound = {core for plan in plans.values() for core in plan["engine_cores"]}
    for at, node in enumerate(nodes):
        _draw_node(axes, at, base, node, set(topology["cores_allowed"]), bound)
    tops = [base + 0.3] * columns
    for frame, home in zip(frames, homes, strict=True):
        _draw_frame(axes, home, tops[home], frame, plans)
        tops[home] += frame.height + 0.2


def _draw_node(
    axes: Axes, at: int, top: float, node: dict[str, Any], allowed: set[int], bound: set[int]
) -> None:
    axes.add_patch(Rectangle((at + 0.04, 0), 0.92, top, fill=False, linewidth=1.2))
    memory = node["memory_bytes"] / 2**30
    said = f"node {node['number']}" + (f", {memory:,.0f} GiB" if memory else "")
    axes.text(at + 0.5, top - 0.45, said, ha="center", va="center")
    width = 0.86 / _ACROSS
    for position, core in enumerate(node["cores"]):
        row, column = divmod(position, _ACROSS)
        colour = _BLUE if core in bound else _GREY if core in allowed else "white"
        ink = "white" if core in bound else "black"
        _draw_box(
            axes,
            (at + 0.07 + column * width, top - 1.8 - row),
            (0.92 * width, 0.8),
            str(core),
            colour,
            ink,
        )


def _draw_frame(
    axes: Axes, at: int, bottom: float, frame: Frame, plans: dict[str, dict[str, Any]]
) -> None:
    axes.add_patch(
        Rectangle((at + 0.04, bottom), 0.92, frame.height, fill=False, linestyle=":", linewidth=1)
    )
    for level, row in enumerate(frame.rows):
        width = 0.88 / len(row)
        for column, device in enumerate(row):
            corner = at + 0.06 + column * width, bottom + 0.2 + 1.2 * level
            lines = [device["name"], device["bus"]]
            colour, ink = _GREEN, "black"
            if row in frame.nics:
                ranks = [rank for rank, plan in plans.items() if plan["nic"] == device["name"]]
                rdma = f" ({device['rdma']})" if device["rdma"] else ""
                lines[0] = f"NIC {device['name']}{rdma}{'' if device['up'] else ', down'}"
                lines += [", ".join(ranks)] if ranks else []
                colour, ink = (_BLUE, "white") if ranks else ("white", "black")
            elif device.get("nearness"):
                far = f": {', '.join(device['nics'])}" if not frame.nics else ""
                lines.append(device["nearness"] + far)
            _draw_box(axes, corner, (width - 0.01, 1.0), "\n".join(lines), colour, ink)


def _draw_box(
    axes: Axes,
    corner: tuple[float, float],
    size: tuple[float, float],
    text: str,
    colour: str,
    ink: str,
) -> None:
    axes.add_patch(Rectangle(corner, *size, facecolor=colour, edgecolor="#777777", linewidth=0.6))
    middle = corner[0] + size[0] / 2, corner[1] + size[1] / 2
    axes.text(*middle, text, ha="center", va="center", fontsize=6, color=ink)
