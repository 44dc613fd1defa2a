"""The scripts of docs/frameworks.md."""

from __future__ import annotations

import re

from helpers.paths import DOCS

SCRIPTS = {
    name: script
    for page in ("frameworks.md", "outer.md", "torchft.md")
    for name, script in re.findall(
        r"```python (\w+)\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.S
    )
}
