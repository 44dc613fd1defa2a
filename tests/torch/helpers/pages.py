"""The text of a page without its code."""

from __future__ import annotations

import re


def prose(page: str) -> str:
    """The page without its blocks of code."""
    return re.sub(r"(?ms)^```.*?^```$|^    .*?$", "", page)
