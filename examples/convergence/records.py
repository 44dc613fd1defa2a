"""Files of runs: one line of JSON each, to which a stopped series is continued."""

from __future__ import annotations

import json
import math
import pathlib
from typing import Any, NamedTuple

Record = dict[str, Any]


class Run(NamedTuple):
    """What defines a run. density: None for methods that have none."""

    task: str
    ranks: int
    shards: str
    method: str
    density: float | None
    seed: int
    steps: int
    lr: float | None = None
    """None: the task's."""


def run_of(record: Record) -> Run:
    """The run that a record is of."""
    return Run(*(record.get(name) for name in Run._fields))


def read(path: pathlib.Path) -> list[Record]:
    """The records of a file, which need not exist, without a line that a stop has cut short."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def append(path: pathlib.Path, record: Record) -> None:
    """Adds a line, after ending one that was cut short."""
    with path.open("a+b") as file:
        if file.tell() > 0:
            file.seek(-1, 2)
            if file.read() != b"\n":
                file.write(b"\n")
        file.write(json.dumps(record).encode() + b"\n")


def final(record: Record) -> float:
    """The last score; of a run that diverged the worst one, which is infinite, or 0 %."""
    score = record["points"][-1]["score"]
    return score if math.isfinite(score) else math.inf if record.get("lower", True) else 0.0


def cost(record: Record) -> float:
    """The last score where smaller is better, or else its negative."""
    return final(record) if record.get("lower", True) else -final(record)
