"""torchft's scripts of docs/torchft.md and docs/outer.md, where torchft is
installed: replicas as processes, one of which is killed and comes back.
"""

from __future__ import annotations

import itertools
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

import pytest

from helpers.frameworks import SCRIPTS
from helpers.ranks import environment

pytestmark = pytest.mark.loopback

LONG = 400.0  # seconds, for one wait
FOR_EVER = str(10**9)  # steps
# torchft's own outer optimizers, in the script of torchft.md.
OWN = {
    "LocalSGD": "outer = LocalSGD(manager, net, sgd, sync_every=4)",
    "DiLoCo": """
fragments = [net[0], net[2]]
momentum = [torch.optim.SGD(f.parameters(), lr=0.7, momentum=0.9, nesterov=True) for f in fragments]
outer = DiLoCo(manager, fragments, sgd, momentum, sync_every=8, fragment_sync_delay=DELAY)
""",
}
OWN["streaming DiLoCo"] = OWN["DiLoCo"].replace("DELAY", "2")
OWN["DiLoCo"] = OWN["DiLoCo"].replace("DELAY", "0")
OWN_TRAINING = """
before = -1
with outer:
    while manager.current_step() < steps:
        images = torch.randn(32, 64)
        sgd.zero_grad()
        loss = nn.functional.cross_entropy(net(images), images[:, :8].argmax(dim=1))
        loss.backward()
        sgd.step()
        if manager.current_step() > max(before, 0):
            before = manager.current_step()
            # DiLoCo has exchanged one fragment alone, and the others go on.
            part = net if isinstance(outer, LocalSGD) else fragments[(before - 1) % 2]
            norm = nn.utils.parameters_to_vector(part.parameters()).norm().item()
            replicas = manager.num_participants()
            print(f"step {before}: {replicas} replicas, loss {loss:.3f}, |w| {norm!r}", flush=True)
"""


def script_of(name: str) -> str:
    if name not in OWN:
        return SCRIPTS[name]
    script, _, _ = SCRIPTS["torchft"].partition("optimizer = Optimizer(manager, sgd)")
    script = script.replace("min_replica_size", "use_async_quorum=False, min_replica_size")
    return f"from torchft.local_sgd import DiLoCo, LocalSGD\n{script}{OWN[name]}{OWN_TRAINING}"


LIGHTHOUSE = """
import threading
from torchft.coordination import LighthouseServer
server = LighthouseServer(
    bind="127.0.0.1:0", min_replicas=2, join_timeout_ms=%d, heartbeat_timeout_ms=1000
)
print("at", server.address(), flush=True)
threading.Event().wait()
"""


class Replicas:
    """Programs whose lines come in through one queue; a context manager that ends them."""

    def __init__(self, script: str, *, joins_late: bool) -> None:
        """joins_late: in its first step a replica's parameters may still be others."""
        self.script, self.joins_late = script, joins_late
        self.said: queue.Queue[tuple[int, str]] = queue.Queue()
        self.lines: list[tuple[int, str]] = []
        self.norms: dict[int, set[str]] = defaultdict(set)  # after each step
        self.steps: dict[int, int] = {}  # that a replica has made
        self.together = 0  # replicas in the last step
        self.starting: set[int] = set()
        self.first: set[int] = set()  # steps of replicas that had just started
        self.running: dict[int, subprocess.Popen] = {}
        self.readers: dict[int, list[threading.Thread]] = {}
        self.lighthouse = ""

    def __enter__(self) -> Replicas:
        return self

    def __exit__(self, *_: object) -> None:
        for each in list(self.running):
            self.kill(each)

    def start_lighthouse(self, join_timeout_ms: int) -> None:
        self._start(-1, ["-c", LIGHTHOUSE % join_timeout_ms], {})
        self.until(lambda: self.lighthouse != "")

    def start(self, replica: int) -> None:
        more = {"TORCHFT_LIGHTHOUSE": self.lighthouse}
        self._start(replica, [self.script, str(replica), FOR_EVER], more)

    def _start(self, replica: int, arguments: list[str], more: dict[str, str]) -> None:
        program = subprocess.Popen(
            [sys.executable, *arguments],
            env=environment() | more,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,  # of its own: torchft's log would come within a printed line
            text=True,
        )
        self.running[replica] = program
        self.starting.add(replica)

        def read(pipe: Iterator[str]) -> None:
            for line in pipe:
                self.said.put((replica, line))

        pipes = (program.stdout, program.stderr)
        self.readers[replica] = [
            threading.Thread(target=read, args=[pipe], daemon=True) for pipe in pipes
        ]
        for reader in self.readers[replica]:
            reader.start()

    def kill(self, replica: int) -> None:
        program = self.running.pop(replica)
        program.kill()
        program.wait()

    def until(self, done: Callable[[], bool]) -> None:
        """Take in what they say until then. None may end: the others would go on for ever."""
        deadline = time.monotonic() + LONG
        while not done():
            if ended := {r: p.returncode for r, p in self.running.items() if p.poll() is not None}:
                raise AssertionError(f"ended, with exit codes {ended}, after\n{self._last(ended)}")
            if time.monotonic() > deadline:
                for program in self.running.values():
                    program.send_signal(signal.SIGABRT)  # Python's faulthandler prints its stacks
                    program.wait()
                raise AssertionError(f"not so after {LONG:g} s\n{self._last(self.running)}")
            try:
                replica, line = self.said.get(timeout=1)
            except queue.Empty:
                continue
            self.lines.append((replica, line))
            if found := re.match(r"at (http\S+)", line):
                self.lighthouse = found[1]
            if found := re.match(r"step (\d+): (\d) replicas, loss \S+, \|w\| (\S+)", line):
                step = int(found[1])
                self.norms[step].add(found[3])
                self.steps[replica] = step
                if replica in self.starting:
                    self.starting.remove(replica)
                    self.first.add(step)
                self.together = int(found[2])

    def _last(self, ended: Iterable[int]) -> str:
        """The last lines of these, which have ended."""
        for reader in itertools.chain(*(self.readers[each] for each in ended)):
            reader.join(LONG)
        self.lines += [self.said.get() for _ in range(self.said.qsize())]
        lines = [f"{replica}: {line}" for replica, line in self.lines if replica in ended]
        return "".join(lines[-300:])


# How long to wait for replicas that are alive: for outer optimizers, which ask at the end of a
# round, until they ask.
@pytest.fixture(
    params=[
        ("torchft", 100),
        ("replicas", 60_000),
        *(pytest.param((each, 60_000), marks=pytest.mark.long) for each in OWN),
    ],
    ids=lambda each: each[0],
)
def replicas(request, tmp_path) -> Iterator[Replicas]:
    pytest.importorskip("torchft")
    name, join_timeout_ms = request.param
    script = tmp_path / "train.py"
    script.write_text(script_of(name))
    with Replicas(str(script), joins_late=name == "streaming DiLoCo") as running:
        running.start_lighthouse(join_timeout_ms)
        yield running


def test_killed_replica_comes_back_while_the_others_train(replicas: Replicas) -> None:
    for replica in range(3):
        replicas.start(replica)
    replicas.until(lambda: replicas.together == 3 and 0 in replicas.steps)
    killed_after = replicas.steps[0]
    replicas.kill(2)
    replicas.until(lambda: replicas.together == 2 and replicas.steps[0] > killed_after)
    alone_at = replicas.steps[0]
    replicas.until(lambda: replicas.steps[0] > alone_at + 5)
    replicas.start(2)
    replicas.until(lambda: replicas.together == 3 and replicas.steps.get(2, 0) > alone_at + 5)
    end = max(replicas.steps.values()) + 20
    replicas.until(lambda: min(replicas.steps.values()) >= end)
    differ = {step for step, norms in replicas.norms.items() if len(norms) > 1}
    if replicas.joins_late:
        differ -= replicas.first
    assert not differ, "replicas have different parameters after these steps"


@pytest.mark.long
def test_replica_waits_over_a_minute_for_another_to_start(replicas: Replicas) -> None:
    replicas.start(0)
    with pytest.raises(subprocess.TimeoutExpired):  # torchft's own limit is 60 s
        replicas.running[0].wait(75)
    replicas.start(1)
    replicas.until(lambda: replicas.together == 2 and 0 in replicas.steps)
