"""Runs parts one after the other, and writes down what they say, after each."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from gpu_check.errors import CheckError, UsageError
from gpu_check.machine import Machine
from gpu_check.page import page
from gpu_check.parts import MINUTES, PARTS


def run(machine: Machine, options: argparse.Namespace) -> int:
    """Returns the exit code. Raises CheckError where there is no such device."""
    names = [*PARTS] if options.parts == "all" else options.parts.split(",")
    unknown = [each for each in names if each not in PARTS]
    if unknown:
        raise UsageError(f"--parts: no part '{unknown[0]}'; there are {', '.join(PARTS)}")
    why_not = machine.why_not()
    if why_not:
        raise CheckError(f"there is no GPU here, nothing was run: {why_not}")
    options.out.mkdir(parents=True, exist_ok=True)
    manifest = machine.packed / "manifest.json"
    results: dict[str, Any] = {
        "packed": json.loads(manifest.read_text()) if manifest.exists() else None,
        "device": machine.device,
        "small": options.small,
        "machine": machine.about(),
        "parts": {},
    }
    end = time.monotonic() + 60 * options.minutes
    failed = 0
    for name in names:
        part, left = PARTS[name], end - time.monotonic()
        begin = time.monotonic()
        if left < 5:
            answer: dict[str, Any] = {"not_run": f"--minutes {options.minutes:g} were over"}
        else:
            try:
                seconds = part.seconds * max(1.0, options.minutes / MINUTES)
                answer = part.run(machine, options.small, begin + min(seconds, left))
            except CheckError as error:
                answer = {"failed": str(error)}
                failed += 1
        answer["took_seconds"] = round(time.monotonic() - begin, 1)
        results["parts"][name] = answer
        said = "failed" if "failed" in answer else "not run" if "not_run" in answer else "done"
        print(f"gpu-check: {name}: {said} after {answer['took_seconds']} s", flush=True)
        (options.out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
        (options.out / "results.md").write_text(page(results))
    print((options.out / "results.md").read_text(), flush=True)
    return 1 if failed else 0
