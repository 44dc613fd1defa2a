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
from ranks import environment
from test_frameworks import SCRIPTS

pytestmark = pytest.mark.loopback

LONG = 400.0  # seconds, for one wait
FOR_EVER = str(10**9)  # steps
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

    def __init__(self, script: str) -> None:
        self.script = script
        self.said: queue.Queue[tuple[int, str]] = queue.Queue()
        self.lines: list[tuple[int, str]] = []
        self.norms: dict[int, set[str]] = defaultdict(set)  # after each step
        self.steps: dict[int, int] = {}  # that a replica has made
        self.together = 0  # replicas in the last step
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
@pytest.fixture(params=[("torchft", 100), ("replicas", 60_000)], ids=lambda each: each[0])
def replicas(request, tmp_path) -> Iterator[Replicas]:
    pytest.importorskip("torchft")
    name, join_timeout_ms = request.param
    script = tmp_path / "train.py"
    script.write_text(SCRIPTS[name])
    with Replicas(str(script)) as running:
        running.start_lighthouse(join_timeout_ms)
        yield running


def test_a_replica_is_killed_and_comes_back_while_the_others_train(replicas: Replicas) -> None:
    for replica in range(3):
        replicas.start(replica)
    replicas.until(lambda: replicas.together == 3 and 0 in replicas.steps)
    killed_after = replicas.steps[0]
    replicas.kill(2)
    replicas.until(lambda: replicas.together == 2 and replicas.steps[0] > killed_after)
    alone_at = replicas.steps[0]
    replicas.until(lambda: replicas.steps[0] > alone_at + 5)
    replicas.start(2)
    replicas.until(lambda: replicas.together == 3 and replicas.steps[2] > alone_at + 5)
    end = max(replicas.steps.values()) + 20
    replicas.until(lambda: min(replicas.steps.values()) >= end)
    differ = {step: norms for step, norms in replicas.norms.items() if len(norms) > 1}
    assert not differ, "replicas have different parameters after these steps"


@pytest.mark.long
def test_a_replica_waits_for_others_that_start_more_than_a_minute_later(replicas: Replicas) -> None:
    replicas.start(0)
    with pytest.raises(subprocess.TimeoutExpired):  # torchft's own limit is 60 s
        replicas.running[0].wait(75)
    replicas.start(1)
    replicas.until(lambda: replicas.together == 2 and 0 in replicas.steps)
