"""Hosts of one machine: network namespaces joined by a shaped switch.

    with netlab.Lab(hosts=4, rate="100mbit") as lab:
        outcome = lab.run([sys.executable, "train.py"], timeout=300)
        print(outcome.ranks[0].output, lab.counters()[0].tx_bytes)

Knows Linux (unshare, nsenter, ip, tc) and torch.distributed's launch environment; must not know
gtopk, UCX beyond its environment variables, or torch itself: it imports only the standard library.
Why the shaping is what it is: docs/lab.md.
"""

from netlab.delayed import SwitchCounters
from netlab.hosts import Counters, Hosts, Loopback
from netlab.impairment import Impairment
from netlab.job import Job, Outcome, RankResult
from netlab.lab import Lab, LabError
from netlab.shape import CALIBRATED, Shape

__all__ = [
    "CALIBRATED",
    "Counters",
    "Hosts",
    "Impairment",
    "Job",
    "Lab",
    "LabError",
    "Loopback",
    "Outcome",
    "RankResult",
    "Shape",
    "SwitchCounters",
]
