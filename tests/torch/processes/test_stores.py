"""What the process does with torch's store besides leaves its groups alone."""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import gtopk
from helpers.ranks import Rank, RankSet, descriptors, free_port, run_script

pytestmark = pytest.mark.loopback

SOON, LONG = timedelta(seconds=1), timedelta(seconds=60)


def store_of(me: Rank, kind: str, folder: str) -> dist.Store:
    if kind == "file":
        return dist.FileStore(str(pathlib.Path(folder) / "store"), me.size)
    if kind == "prefixes":
        return dist.PrefixStore("a", dist.PrefixStore("b", me.store))
    return me.store


def check_who_waits_in_the_store_is_asked(me: Rank, kind: str, folder: str) -> None:
    """Rank 1 has not talked to rank 0, whose address it needs to say that it lives."""
    store = store_of(me, kind, folder)
    backend = gtopk.create_backend(store, me.rank, me.size, LONG, name=f"waits in {kind}")
    backend._set_default_timeout(SOON)
    if me.rank == 0:
        with pytest.raises(dist.DistBackendError, match=r"rank 1 \(.*never entered all_reduce"):
            backend.allreduce([torch.ones(3)]).wait()
        store.set(f"asked in {kind}", "")
    else:
        store.get(f"asked in {kind}")
    backend.shutdown()


@pytest.mark.parametrize("kind", ["tcp", "prefixes", "file"])
def test_a_rank_that_waits_in_the_store_is_not_taken_for_dead(
    two_apart: RankSet, kind: str, tmp_path: pathlib.Path
) -> None:
    two_apart.run(check_who_waits_in_the_store_is_asked, kind, str(tmp_path))


OVER_TCP = """
import os, socket, tempfile
import torch, torch.distributed as dist

def meet(backend, method):
    dist.init_process_group(backend, init_method=method, rank=0, world_size=1)
    dist.all_reduce(torch.ones(3))

port = int(os.environ["FREE_PORT"])
"""


def test_a_destroyed_group_leaves_its_store() -> None:
    """Its server, a FileStore's file, and hooks, which are Python's."""
    script = f"""{OVER_TCP}
for backend in ("gtopk", "gloo", "gtopk"):
    meet(backend, f"tcp://127.0.0.1:{{port}}")
    group = dist.new_group(backend=backend)
    dist.barrier(group)
    store = dist.distributed_c10d._get_default_store()
    assert store.add("groups over this server", 1) == 1
    if backend != "gloo":
        group._register_on_completion_hook(lambda info: None)
        dist.barrier(group)
    del group, store
    dist.destroy_process_group()
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", port))
        again.listen()
with tempfile.TemporaryDirectory() as folder:
    meet("gtopk", f"file://{{folder}}/store")
    assert os.listdir(folder) == ["store"]
    dist.destroy_process_group()
    assert os.listdir(folder) == []
"""
    said = run_script(script, FREE_PORT=str(free_port()))
    assert (said.returncode, said.stderr) == (0, "")


def test_hooks_of_a_destroyed_group_go_before_python_does() -> None:
    script = f"""{OVER_TCP}
class Hook:
    def __call__(self, info): pass
    def __del__(self): print("gone", flush=True)
meet("gtopk", f"tcp://127.0.0.1:{{port}}")
dist.group.WORLD._register_on_completion_hook(Hook())
dist.all_reduce(torch.ones(3))
dist.destroy_process_group()
print("destroyed", flush=True)
"""
    said = run_script(script, FREE_PORT=str(free_port()))
    assert (said.returncode, said.stdout, said.stderr) == (0, "gone\ndestroyed\n", "")


def check_groups_share_one_client(me: Rank) -> None:
    world = gtopk.create_backend(me.store, me.rank, me.size, LONG, name="world")
    world.barrier().wait()
    before = len(descriptors())
    groups = [gtopk.create_backend(me.store, me.rank, me.size, LONG, name=str(i)) for i in range(9)]
    for group in groups:
        group.barrier().wait()
    assert len(descriptors()) == before
    for group in [*groups, world]:
        group.shutdown()


def test_all_groups_over_a_store_share_one_more_client(two_apart: RankSet) -> None:
    two_apart.run(check_groups_share_one_client)


def keeping_alive(port: int) -> list[bool]:
    """Of each connection of this process to that port, whether it sends keepalives."""
    found = []
    for each in pathlib.Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # it has been closed meanwhile, or has no peer
            if not os.readlink(each).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(each.name))) as one:
                if one.family != socket.AF_UNIX and one.getpeername()[1] == port:
                    found.append(one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1)
    return found


def check_the_client_sends_keepalives(me: Rank) -> None:
    backend = gtopk.create_backend(me.store, me.rank, me.size, LONG, name="kept alive")
    backend.barrier().wait()
    assert any(keeping_alive(me.port))
    backend.shutdown()


def test_the_client_of_a_group_sends_keepalives(two_apart: RankSet) -> None:
    two_apart.run(check_the_client_sends_keepalives)


def check_no_client_is_left(me: Rank) -> None:
    counts = []
    for number in range(4):
        backend = gtopk.create_backend(me.store, me.rank, me.size, LONG, name=f"left {number}")
        backend.barrier().wait()
        backend.shutdown()
        del backend
        counts.append(len(descriptors()))
    assert counts[1:] == counts[:1] * 3


def test_the_client_goes_with_the_last_group(two_apart: RankSet) -> None:
    two_apart.run(check_no_client_is_left)
