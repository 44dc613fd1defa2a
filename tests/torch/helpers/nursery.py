"""Python programs forked from a process that has imported torch.

Importing torch takes two seconds of a core, torch._dynamo (which DDP imports) one more, and the
tests start hundreds of programs. The nursery is one process that has imported both and nothing of
gtopk's core; it has a single thread and opens nothing else, so that its children are as good as
processes of their own: they replace their environment, folder, standard streams and __main__, and
end as Python programs do. multiprocessing's fork server ends its children by os._exit(), without
what libraries do at exit, which is much of what is tested here.

Variables that are read when Python starts or torch is imported come too late: Nursery.serves()
says whether a program's environment has others than the nursery's own.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import importlib
import json
import os
import pathlib
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Mapping
from typing import Any

LIMIT = 1 << 17  # bytes of a request
READ_EARLY = ("PYTHON", "TORCH", "LD_", "OMP_", "MKL_")


class Program:
    """A child of the nursery, as subprocess.Popen has it."""

    def __init__(self, report: socket.socket, words: list[str]) -> None:
        self._report = report
        self._words = words
        self.returncode: int | None = None
        self.pid = int(self._said() or 0)
        if not self.pid:
            raise RuntimeError("the nursery ended before it could fork")

    def _said(self) -> str:
        return self._report.recv(64).decode()

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._report], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self._words, timeout or 0)
            code = self._said()
            if not code:
                raise RuntimeError(f"the nursery ended before its child {self.pid}")
            self.returncode = int(code)
            self._report.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and is not reported yet
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Nursery:
    """Started by the first program, ended with this process."""

    def __init__(self) -> None:
        self._env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
        self._control: socket.socket | None = None
        self._lock = threading.Lock()

    def serves(self, env: Mapping[str, str]) -> bool:
        """Whether a child heeds all variables of env."""

        def early(variables: Mapping[str, str]) -> dict[str, str]:
            return {name: variables[name] for name in variables if name.startswith(READ_EARLY)}

        return early(env) == early(self._env)

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=self._env,
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        atexit.register(process.wait)
        atexit.register(ours.close)  # which ends it; handlers run last in, first out
        return ours

    def start(
        self,
        words: list[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        streams: Mapping[int, int],
    ) -> Program:
        """Runs `python *words` (a file or -c, and arguments). streams: the child's descriptor
        numbers and which of ours each is; its standard input is empty."""
        with self._lock:
            self._control = self._control or self._start()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = {"words": words, "env": dict(env), "cwd": cwd, "streams": list(streams)}
        given = [theirs.fileno(), *streams.values()]
        socket.send_fds(self._control, [json.dumps(request).encode()], given)
        theirs.close()
        return Program(ours, words)


def next_child(control: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The nursery's loop. Returns in each child, with what it is to run; None at the end."""
    running: dict[int, tuple[int, int]] = {}  # by pidfd: the process and where to tell its end
    with selectors.DefaultSelector() as events:
        events.register(control, selectors.EVENT_READ)
        while True:
            for event, _ in events.select():
                if event.fileobj is not control:
                    pid, report = running.pop(event.fd)
                    events.unregister(event.fd)
                    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    tell(report, code)
                    os.close(report)
                    os.close(event.fd)
                    continue
                message, given, _, _ = socket.recv_fds(control, LIMIT, 16)
                if not message:
                    return None
                pid = os.fork()
                if pid == 0:
                    for pidfd, (_, report) in running.items():
                        os.close(pidfd)
                        os.close(report)
                    os.close(given[0])
                    return json.loads(message), given[1:]
                tell(given[0], pid)
                for each in given[1:]:
                    os.close(each)
                pidfd = os.pidfd_open(pid)
                running[pidfd] = (pid, given[0])
                events.register(pidfd, selectors.EVENT_READ)


def tell(report: int, what: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody waits for this program any more
        os.write(report, str(what).encode())


def become(request: dict[str, Any], given: list[int]) -> None:
    """Runs the program in this child, as `python *words` would."""
    above = [fcntl.fcntl(each, fcntl.F_DUPFD, 512) for each in given]  # clear of all targets
    for each in given:
        os.close(each)
    for each, number in zip(above, request["streams"], strict=True):
        os.dup2(each, number)
        os.close(each)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    path, *rest = request["words"]
    if path == "-c":
        source, name, folder = rest.pop(0), "<string>", ""
    else:
        source = pathlib.Path(path).read_text(encoding="utf-8")
        name, folder = path, os.path.dirname(path)
    sys.argv = [path, *rest]
    sys.path[0] = folder
    nursery = sys.modules["__main__"]  # a module that nothing refers to loses its globals
    main = types.ModuleType("__main__")
    if path != "-c":
        main.__file__ = path
    sys.modules["__main__"] = main
    exec(compile(source, name, "exec"), main.__dict__)
    del nursery


if __name__ == "__main__":
    importlib.import_module("torch._dynamo")
    gc.freeze()  # else each child's end goes through all of torch's objects: half a second
    asked = socket.socket(fileno=int(sys.argv[1]))
    child = next_child(asked)
    asked.close()
    if child is not None:
        become(*child)
