"""tools/reproduce: published figures beside ours, an entry for each page. Run from a checkout.

Nets and codes are those of examples/convergence.
"""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples" / "convergence"))
