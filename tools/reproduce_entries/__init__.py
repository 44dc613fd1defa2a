"""tools/reproduce: published figures beside gtopk's, an entry per page. Runs from a checkout.

Nets and codes are the same as in examples/convergence.
"""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples" / "convergence"))
