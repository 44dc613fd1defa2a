"""Prints the units that clang-tidy reads, the longest first: a translation unit and its sources.

usage: tidy_units.py BUILD <sources, a line each>

BUILD has compile_commands.json; the entries that are read, one per file, go to BUILD/once. Units
without any of the given sources are left out. A source that no target compiles is an error (exit
code 1).
"""

import json
import re
import sys
from pathlib import Path

root = Path.cwd()
build = Path(sys.argv[1])
asked = set(sys.stdin.read().split())

commands = {}  # some sources are part of several programs
for command in json.loads((build / "compile_commands.json").read_text()):
    commands.setdefault(command["file"], command)
(build / "once" / "compile_commands.json").write_text(json.dumps(list(commands.values())))

# The tests' own rules also apply to their units, which are in a folder of the same name in BUILD.
(build / "tests").mkdir(parents=True, exist_ok=True)
(build / "tests" / ".clang-tidy").write_text((root / "tests" / ".clang-tidy").read_text())


def sources_of(unit):
    """Return the project's files in a unit that CMake generates, or the file itself."""
    found = [unit]
    if "/Unity/" in unit:
        found = re.findall(r'#include "(.*)"', Path(unit).read_text())
    return [str(Path(each).relative_to(root)) for each in found]


units = {unit: sources_of(unit) for unit in commands}
wanted = {unit: sources for unit, sources in units.items() if asked.intersection(sources)}


def length(unit):
    # A unit that includes torch's headers takes longest, whatever its own length.
    bytes_read = sum((root / source).stat().st_size for source in units[unit])
    return ("torch" in unit, bytes_read)


for unit in sorted(wanted, key=length, reverse=True):
    print(Path(unit).relative_to(root), *units[unit])
missing = asked.difference(*units.values())
for source in sorted(missing):
    print(f"lint: no target compiles {source}", file=sys.stderr)
sys.exit(bool(missing))
