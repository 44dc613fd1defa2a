"""The command line of tools/gpu-check."""

from __future__ import annotations

import argparse
import pathlib
import sys

from gpu_check.errors import CheckError, UsageError
from gpu_check.machine import Machine
from gpu_check.pack import pack
from gpu_check.parts import MINUTES, PARTS
from gpu_check.run import run

HERE = pathlib.Path(__file__).resolve().parents[1]
ROOT = HERE.parent
ABOUT = """
Two steps: `pack` on a machine that builds gtopk, `run` on the one with the GPU, in the folder that
`pack` has made. Nothing is fetched, and neither gtopk nor UCX need be there: only Python, torch of
the version that was packed, and numpy.

Exit codes: 0; 1 for a check that failed, or without a GPU; 2 for invalid arguments.
"""


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="gpu-check", epilog=ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    steps = parser.add_subparsers(dest="step", required=True)
    packs = steps.add_parser("pack", help="gather what a machine with a GPU needs, in one folder")
    packs.add_argument("--into", type=pathlib.Path, default=ROOT / "build" / "gpu-check")
    packs.add_argument("--torch", default="2.11", help="the version there (default %(default)s)")
    packs.add_argument(
        "--wheel", type=pathlib.Path, help="this one; default: build it (tools/wheel)"
    )
    packs.add_argument(
        "--kernels", type=pathlib.Path, help="this libgtopk_cuda.so; default: the wheel's"
    )
    packs.add_argument(
        "--tests", type=pathlib.Path, help="this test_kernels; default: build it (preset release)"
    )
    packs.add_argument(
        "--most", type=float, default=64, help="MiB that it may take (default %(default)s)"
    )
    runs = steps.add_parser("run", help="run the checks here, and write results.json and .md")
    runs.add_argument("--packed", type=pathlib.Path, help="the folder (default: this script's)")
    runs.add_argument("--out", type=pathlib.Path, default=pathlib.Path("gpu-check-results"))
    runs.add_argument("--parts", default="all", help=f"{', '.join(PARTS)}, or all (the default)")
    runs.add_argument("--device", default="cuda", help="torch's name of it (default %(default)s)")
    runs.add_argument(
        "--small", action="store_true", help="small sizes: to see that it runs, not how fast"
    )
    runs.add_argument(
        "--again", action="store_true", help="also run what an earlier call has done in --out"
    )
    runs.add_argument(
        "--minutes",
        type=float,
        default=MINUTES,
        help="for all parts together (default %(default)s)",
    )
    options = parser.parse_args(words)
    try:
        if options.step == "pack":
            return pack(ROOT, options)
        packed = options.packed or (HERE if (HERE / "site").is_dir() else ROOT / "build/gpu-check")
        return run(Machine(packed, options.device), options)
    except UsageError as error:
        print(f"gpu-check: {error}", file=sys.stderr)
        return 2
    except CheckError as error:
        print(f"gpu-check: {error}", file=sys.stderr)
        return 1
