"""Hosts of one machine: network namespaces joined by a shaped switch.

    with netlab.Lab(hosts=4, rate="100mbit") as lab:
        outcome = lab.run([sys.executable, "train.py"], timeout=300)
        print(outcome.ranks[0].output, lab.counters()[0].tx_bytes)

The package depends on Linux (unshare, nsenter, ip, tc) and torch.distributed's launch environment.
It must not depend on gtopk, on UCX beyond its environment variables, or on torch itself, and
imports only the standard library. docs/lab.md explains the shaping.
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
