"""Ranks that leave, exit, raise or are killed before others talk to them."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator

import pytest
import torch.distributed as dist

from helpers.paths import TORCH
from helpers.ranks import NURSERY, WATCHDOG, environment, free_port

pytestmark = pytest.mark.loopback

SOON = 15.0  # seconds, a quarter of the groups' timeout
LEFT = r"rank {} \(host [^ ]+, pid {}\) has left \(it destroyed its process group or exited\)"
GONE = r"rank {} \(host [^ ]+, pid {}\) is gone: "

PRELUDE = """
import json, os, signal, sys, time
from datetime import timedelta
import torch
import torch.distributed as dist

rank, size, leaver, port, how = *map(int, sys.argv[1:5]), sys.argv[5]
store = dist.TCPStore("127.0.0.1", port, is_master=False, use_libuv=True)

def heard(what, call):
    begin = time.monotonic()
    try:
        call()
    except dist.DistBackendError as error:
        print(json.dumps([what, str(error), time.monotonic() - begin]), flush=True)
    else:
        print(json.dumps([what, "", time.monotonic() - begin]), flush=True)

def leave():
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "raised":
        raise RuntimeError("no such dataset")
    if how == "raised and destroyed":
        try:
            raise RuntimeError("no such dataset")
        finally:
            dist.destroy_process_group()
    if how == "destroyed":
        dist.destroy_process_group()
        store.set("gone", "")
        store.wait(["done"])
    sys.exit()

def join(**meeting):
    dist.init_process_group(
        "gtopk", rank=rank, world_size=size, timeout=timedelta(seconds=60), **meeting)
"""

FIRST_CONTACTS = f"""{PRELUDE}
join(store=dist.PrefixStore("group", store))
small, large = torch.ones(2), torch.ones(300_000)
if rank == leaver:
    store.wait(["waiting"])
    leave()
if rank == 0:
    work = dist.irecv(small, leaver)
    store.set("waiting", "")
    heard("receive before", work.wait)
store.wait(["gone"])
if rank == 1:
    heard("receive after", lambda: dist.recv(small, leaver))
if rank == 2:
    heard("send", lambda: dist.send(small, leaver))
    heard("isend", lambda: dist.isend(small, leaver).wait())
    heard("large send", lambda: dist.send(large, leaver))
heard("collective", lambda: dist.all_reduce(small))
"""

FIRST_COLLECTIVE = f"""{PRELUDE}
join(store=dist.PrefixStore("group", store))
if rank == leaver:
    leave()
heard("collective", lambda: dist.all_reduce(torch.ones(2)))
"""

OWN_STORE = f"""{PRELUDE}
os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", os.environ["FREE_PORT"]
join(init_method="env://")
store.set(f"joined {{rank}}", "")
if rank == leaver:
    store.wait([f"joined {{each}}" for each in range(size)])  # whose store is this rank's own
    leave()
heard("collective", lambda: dist.all_reduce(torch.ones(2)))
"""

WORKED_TOGETHER = f"""{PRELUDE}
os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", os.environ["FREE_PORT"]
join(init_method="env://")
dist.all_reduce(torch.ones(2))
if rank != leaver:
    store.wait(["gone"])
dist.destroy_process_group()
"""


def ways(*hows: str, over_tcp: tuple[str, ...]) -> pytest.MarkDecorator:
    """Each way to leave over shared memory, and those over TCP that differ there."""
    cases = [*((how, "shared memory") for how in hows), *((how, "tcp") for how in over_tcp)]
    return pytest.mark.parametrize(("how", "transport"), cases)


class Job:
    """Ranks that run a script, one of which leaves."""

    def __init__(self, script: str, how: str, transport: str, size: int, leaver: int) -> None:
        self.store = dist.TCPStore(
            "127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=True
        )
        self.leaver, self.how = leaver, how
        self._logs = [tempfile.TemporaryFile("w+") for _ in range(2 * size)]  # noqa: SIM115
        self.programs = []
        env = environment() | {"FREE_PORT": str(free_port())}
        if transport == "tcp":
            env["UCX_TLS"] = "tcp,self"
        for rank in range(size):
            words = ["-c", script, *map(str, (rank, size, leaver, self.store.port)), how]
            streams = {1: self._logs[2 * rank].fileno(), 2: self._logs[2 * rank + 1].fileno()}
            self.programs.append(NURSERY.start(words, env=env, cwd=str(TORCH), streams=streams))

    def heard(self) -> Iterator[tuple[int, str, str, float]]:
        """For each call of the other ranks: the rank, what it was, its error, and its seconds."""
        if self.how != "destroyed":
            self.programs[self.leaver].wait(WATCHDOG)
            self.store.set("gone", "")
        stayers = [rank for rank in range(len(self.programs)) if rank != self.leaver]
        for rank in stayers:
            assert self.programs[rank].wait(WATCHDOG) == 0, self.stderr(rank)
        self.store.set("done", "")
        self.programs[self.leaver].wait(WATCHDOG)
        for rank in stayers:
            for line in self._log(2 * rank).splitlines():
                if line.startswith('["'):  # not what UCX logs
                    yield (rank, *json.loads(line))

    def text(self, pattern: str) -> re.Pattern[str]:
        return re.compile(pattern.format(self.leaver, self.programs[self.leaver].pid))

    def stderr(self, rank: int) -> str:
        return self._log(2 * rank + 1)

    def _log(self, number: int) -> str:
        self._logs[number].seek(0)
        return self._logs[number].read()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        for program in self.programs:
            program.kill()
        for log in self._logs:
            log.close()


@ways("destroyed", "exited", "raised", "killed", over_tcp=("destroyed", "killed"))
def test_first_contact_with_a_rank_that_is_gone_names_it_at_once(how: str, transport: str) -> None:
    with Job(FIRST_CONTACTS, how, transport, size=5, leaver=4) as job:
        errors = list(job.heard())
        assert sorted(what for _, what, _, _ in errors) == [
            *["collective"] * 4,
            "isend",
            "large send",
            "receive after",
            "receive before",
            "send",
        ]
        for rank, what, error, seconds in errors:
            assert job.text(GONE if how == "killed" else LEFT).search(error), (rank, what, error)
            assert seconds < SOON or what == "receive before", (rank, what, seconds)
            if how == "raised":
                assert "its last error: RuntimeError: no such dataset" in error, (rank, what, error)


@ways("exited", "raised", "raised and destroyed", "killed", over_tcp=("raised", "killed"))
def test_first_collective_names_a_rank_that_ended_after_init(how: str, transport: str) -> None:
    for leaver in (3, 1):
        with Job(FIRST_COLLECTIVE, how, transport, size=4, leaver=leaver) as job:
            errors = list(job.heard())
            assert len(errors) == 3
            for rank, _, error, seconds in errors:
                expected = job.text(GONE if how == "killed" else LEFT)
                assert expected.search(error), (rank, error)
                assert seconds < SOON, (rank, seconds)
                if how == "raised":
                    assert "RuntimeError: no such dataset" in error, (rank, error)


@ways("exited", "raised", "killed", over_tcp=("killed",))
def test_rank_that_ends_along_with_its_store_is_still_named(how: str, transport: str) -> None:
    with Job(OWN_STORE, how, transport, size=4, leaver=0) as job:
        errors = list(job.heard())
        assert len(errors) == 3
        for rank, _, error, seconds in errors:
            assert job.text(GONE).search(error) or job.text(LEFT).search(error), (rank, error)
            assert seconds < SOON, (rank, seconds)


@pytest.mark.parametrize("size", [2, 6])  # ranks 1 and 4 of 6 have not met
def test_ranks_that_leave_after_the_store_owner_print_no_error(size: int) -> None:
    with Job(WORKED_TOGETHER, "exited", "tcp", size=size, leaver=0) as job:
        assert list(job.heard()) == []
        assert [job.stderr(rank) for rank in range(size)] == [""] * size
