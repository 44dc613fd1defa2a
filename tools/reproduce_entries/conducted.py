"""Replicas of examples/outer/replicas.py as processes that are killed, stopped and started."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

from reproduce_entries import ROOT

PROGRAM = ROOT / "examples" / "outer" / "replicas.py"
SILENCE = 300.0  # seconds without output from any replica until the run has failed
Line = dict[str, Any]


class Conducted:
    """The running replicas and their output; a context manager that ends them."""

    def __init__(self, *arguments: str) -> None:
        # tools/setup --dev installs this.
        from torchft.coordination import LighthouseServer

        self.arguments = arguments
        self.lighthouse = LighthouseServer(
            bind="127.0.0.1:0", min_replicas=2, join_timeout_ms=60_000, heartbeat_timeout_ms=3000
        )
        self.lines: list[Line] = []
        self.running: dict[int, subprocess.Popen[str]] = {}
        self._said: queue.Queue[Line | None] = queue.Queue()
        self._began = time.monotonic()
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Conducted:
        self._folder = pathlib.Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        return self

    def __exit__(self, *_: object) -> None:
        for replica in list(self.running):
            self.kill(replica)
        self.lighthouse.shutdown()
        self._stack.close()

    def start(self, replica: int) -> None:
        """Start a process that is ready to join but waits."""
        errors = self._stack.enter_context((self._folder / f"{replica}.txt").open("w"))
        program = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(replica), "--wait", *self.arguments],
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "TORCHFT_LIGHTHOUSE": self.lighthouse.address(),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        self.running[replica] = program

        def read() -> None:
            for line in program.stdout or ():
                said = time.monotonic() - self._began
                self._said.put({"replica": replica, "seconds": round(said, 2), **json.loads(line)})
            self._said.put(None)

        threading.Thread(target=read, daemon=True).start()

    def join(self, *replicas: int) -> None:
        """Let these join, once all of them are ready."""
        self.until(
            lambda: {each["replica"] for each in self.lines if "ready" in each} >= {*replicas}
        )
        for replica in replicas:
            stdin = self.running[replica].stdin
            assert stdin is not None
            stdin.write("\n")
            stdin.flush()

    def kill(self, replica: int) -> None:
        program = self.running.pop(replica)
        program.kill()
        program.wait()

    def stop(self, replica: int) -> None:
        self.running[replica].send_signal(signal.SIGSTOP)

    def go_on(self, replica: int) -> None:
        self.running[replica].send_signal(signal.SIGCONT)

    def until(self, done: Callable[[], bool]) -> None:
        """Read the replicas' output until `done` returns true."""
        while not done():
            try:
                line = self._said.get(timeout=SILENCE)
            except queue.Empty:
                raise RuntimeError(f"no replica says anything\n{self._errors()}") from None
            if line is not None:
                self.lines.append(line)

    def has_reached(self, step: int, replica: int = 0) -> bool:
        return any(
            each["replica"] == replica and each["step"] >= step and "digest" in each
            for each in self.lines
        )

    def all_end(self) -> None:
        """Wait for all running replicas; raise RuntimeError if one has failed."""
        while self.running:
            for replica, program in list(self.running.items()):
                if program.poll() is not None:
                    del self.running[replica]
                    if program.returncode:
                        raise RuntimeError(f"replica {replica} failed\n{self._errors()}")
            time.sleep(0.1)
        with contextlib.suppress(queue.Empty):
            while True:
                line = self._said.get(timeout=1)
                self.lines += [] if line is None else [line]

    def _ready(self) -> set[int]:
        return {each["replica"] for each in self.lines if "ready" in each}

    def _errors(self) -> str:
        files = sorted(self._folder.glob("*.txt"))
        return "\n".join(f"{each.stem}: {each.read_text()[-2000:]}" for each in files)
