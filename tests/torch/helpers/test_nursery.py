"""The nursery's children are as good as processes of their own."""

from __future__ import annotations

import pathlib
import signal
import socket
import subprocess
import sys
import tempfile

import pytest

from helpers.nursery import Nursery
from helpers.ranks import NURSERY, environment, run_script

pytestmark = pytest.mark.loopback

SAYS = """
import atexit, os, sys, threading
atexit.register(print, "at exit")
threading.Thread(target=lambda: (threading.main_thread().join(), print("thread"))).start()
print(sys.argv, __name__, os.environ["A_WORD"], len(os.listdir("/proc/self/fd")))
print("to stderr", file=sys.stderr)
assert "gtopk.core._native" not in sys.modules
sys.exit(3)
"""


def test_a_child_lives_and_ends_as_a_program_does():
    """Word for word what python -c itself gives."""
    done = run_script(SAYS, A_WORD="seen")
    own = subprocess.run(
        [sys.executable, "-c", "import torch\n" + SAYS],
        env={**environment(), "A_WORD": "seen"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (own.returncode, own.stderr) == (3, "to stderr\n")
    # Beside the streams: the folder that is being listed. Nothing of the nursery is left open.
    assert done.stdout.splitlines()[0] == "['-c'] __main__ seen 4"
    assert done.stdout == own.stdout


@pytest.mark.parametrize(
    ("source", "code", "said"),
    [
        ("", 0, ""),
        ("raise SystemExit('a reason')", 1, "a reason\n"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, ""),
    ],
)
def test_a_child_s_end_is_told(source: str, code: int, said: str):
    done = run_script(source)
    assert done.returncode == code
    assert done.stderr.endswith(said) if said else not done.stderr


def test_a_child_that_takes_too_long_is_killed():
    with pytest.raises(subprocess.TimeoutExpired):
        run_script("import signal; signal.pause()", timeout=0.1)


def test_children_are_killed_and_awaited_one_by_one(tmp_path: pathlib.Path):
    with tempfile.TemporaryFile() as log:
        streams = {1: log.fileno(), 2: log.fileno()}
        words = ["-c", "import signal; signal.pause()"]
        some = [
            NURSERY.start(words, env=environment(), cwd=str(tmp_path), streams=streams)
            for _ in range(3)
        ]
        assert [each.poll() for each in some] == [None] * 3
        some[1].kill()
        assert some[1].wait(60) == -signal.SIGKILL
        assert [each.poll() for each in some] == [None, -signal.SIGKILL, None]
        for each in (some[2], some[0]):
            each.send_signal(signal.SIGTERM)
            assert each.wait(60) == -signal.SIGTERM
        some[0].kill()  # of one that has ended: nothing


def test_what_is_read_early_needs_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch):
    nursery = Nursery()
    assert nursery.serves({**environment(), "GTOPK_LOG": "debug", "UCX_TLS": "tcp"})
    assert not nursery.serves({**environment(), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
    assert not nursery.serves({**environment(), "OMP_NUM_THREADS": "2"})
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    assert not nursery.serves(environment())


def test_a_line_is_written_by_one_call():
    """So that lines of ranks that share torchrun's output never run together."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # a packet per write
    with ours, theirs:
        start = [sys.executable, "-c", "print('a line', flush=True)"]
        subprocess.run(start, env=environment(), stdout=theirs, check=True)
        assert ours.recv(100) == b"a line\n"
