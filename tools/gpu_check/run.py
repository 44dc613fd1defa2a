"""Runs parts one after the other, and writes down the results after each.

A later call continues: it keeps earlier results and runs the parts that are not done.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import time
from typing import Any

from gpu_check.errors import CheckError, UsageError
from gpu_check.machine import Machine
from gpu_check.page import page
from gpu_check.parts import MINUTES, PARTS


def run(machine: Machine, options: argparse.Namespace) -> int:
    """Return the exit code. Raises CheckError if there is no such device, and UsageError if the
    folder has the results of another device, package or size.
    """
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
    done = {} if options.again else _done(options.out, results)
    results["parts"] = done
    names = [each for each in names if each not in done]
    if done:
        print(f"gpu-check: done before: {', '.join(done)}", flush=True)
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


def _done(out: pathlib.Path, results: dict[str, Any]) -> dict[str, Any]:
    """Return the results of earlier calls in this folder."""
    if not (out / "results.json").exists():
        return {}
    try:
        before = json.loads((out / "results.json").read_text())
    except ValueError as error:
        raise UsageError(
            f"{out}/results.json is not whole ({error}): give another --out, or --again to replace "
            "it"
        ) from error
    for name in ("packed", "device", "small"):
        if before.get(name) != results[name]:
            raise UsageError(
                f"{out} has results with {name} {before.get(name)}, not {results[name]}: give "
                "another --out, or --again to replace them"
            )
    if before["machine"]["gpu"] != results["machine"]["gpu"]:
        raise UsageError(
            f"{out} has results of {before['machine']['gpu']}, not {results['machine']['gpu']}: "
            "give another --out, or --again to replace them"
        )
    return {
        name: answer
        for name, answer in before["parts"].items()
        if not {"failed", "not_run"} & answer.keys()
    }
