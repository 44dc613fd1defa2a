"""Where the project's files are."""

from __future__ import annotations

import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[3]
TORCH = ROOT / "tests" / "torch"
"""The folder from which tests and their ranks import `helpers` and `fake`."""
DOCS = ROOT / "docs"
EXAMPLES = ROOT / "examples"
TOOLS = ROOT / "tools"
