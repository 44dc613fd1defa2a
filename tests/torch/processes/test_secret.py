"""GTOPK_SECRET under torch's store: who may join, and what a stranger gets."""

from __future__ import annotations

import pathlib
import re
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist

from helpers.ranks import Rank, RankSet, descriptors

pytestmark = pytest.mark.loopback

SECRET, OTHER = "the secret of this job", "the secret of that job"


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


def join(me: Rank, name: str, store: dist.Store | None = None) -> None:
    store = store or dist.PrefixStore(name, me.store)
    dist.init_process_group("gtopk", store=store, rank=me.rank, world_size=me.size)


def expect_sum(me: Rank, group: dist.ProcessGroup | None = None) -> None:
    tensor = torch.full((1000,), float(me.rank))
    dist.all_reduce(tensor, group=group)
    assert tensor.eq(me.size * (me.size - 1) / 2).all()


def check_an_invalid_secret_is_refused_before_ranks_meet(me: Rank) -> None:
    for variable, value, said in (
        ("GTOPK_SECRET", "short", "GTOPK_SECRET gives a secret of 5 bytes: expected at least 16"),
        ("GTOPK_SECRET_FILE", "/nowhere/secret", "is '/nowhere/secret', which cannot be read"),
    ):
        with environment(**{variable: value}), pytest.raises(dist.DistBackendError, match=said):
            join(me, value)


def check_ranks_with_one_secret_work_together(me: Rank) -> None:
    with environment(GTOPK_SECRET=SECRET), warnings.catch_warnings():
        warnings.simplefilter("error")  # once it was said that nothing is protected
        join(me, "alike")
        expect_sum(me)
        expect_sum(me, dist.new_group())
        dist.destroy_process_group()


def check_secret_mismatch_or_absence_is_an_error_on_both_ranks(me: Rank) -> None:
    one, zero = r"rank 1 \(host \S+, pid \d+\)", r"rank 0 \(host \S+, pid \d+\)"
    for secrets, said in (
        ((SECRET, OTHER), f"{one} has another secret than {zero}"),
        ((SECRET, ""), f"{one} has no secret, but {zero} has one"),
        (("", SECRET), f"{one} has a secret, but {zero} has none"),
    ):
        with environment(GTOPK_SECRET=secrets[me.rank]):
            said += ": set the same GTOPK_SECRET on all ranks"
            with pytest.raises(dist.DistBackendError, match=said):
                join(me, f"unlike {secrets}")


def test_on_two_ranks(two_apart: RankSet, check) -> None:
    two_apart.run(check)


def join_over_file(me: Rank, file: pathlib.Path) -> None:
    """A FileStore only appends, so its file shows all that was ever in the store."""
    join(me, "", dist.FileStore(str(file), me.size))


def check_what_the_store_shows(me: Rank, folder: str) -> None:
    for secret in ("", SECRET):
        file = pathlib.Path(folder, f"store{len(secret)}")
        with environment(GTOPK_SECRET=secret):
            join_over_file(me, file)
            expect_sum(me)
            shown = file.read_bytes()
            dist.barrier()
            dist.destroy_process_group()
        assert re.search(rb"gtopk/address/[0-9a-f]{16}", shown)
        # Every address and every card begins with it.
        assert (b"GTUX" in shown) == (secret == "")


def test_a_stranger_finds_no_address_in_the_store(
    two_apart: RankSet, tmp_path: pathlib.Path
) -> None:
    two_apart.run(check_what_the_store_shows, str(tmp_path))


def check_a_replaced_address(me: Rank, path: str) -> None:
    file = pathlib.Path(path)
    with environment(GTOPK_SECRET=SECRET):
        join_over_file(me, file)
        if me.rank == 0:
            stranger = dist.FileStore(path, me.size + 1)
            for name in set(re.findall(rb"gtopk/address/[0-9a-f]{16}", file.read_bytes())):
                stranger.set(name.decode(), "where the stranger listens")
            me.store.set("replaced", "")
        me.store.wait(["replaced"])
        other = 1 - me.rank
        said = rf"rank {other} \(host .*not written by a rank with this rank's secret"
        with pytest.raises(dist.DistBackendError, match=said):
            dist.all_reduce(torch.ones(3))
        dist.destroy_process_group()


def test_an_address_that_a_stranger_has_replaced_is_refused(two_apart: RankSet, tmp_path) -> None:
    two_apart.run(check_a_replaced_address, str(tmp_path / "store"))


def listening() -> list[tuple[str, int]]:
    """Where this process accepts connections."""
    own = descriptors()
    rows = [line.split() for line in pathlib.Path("/proc/self/net/tcp").read_text().splitlines()]
    mine = [row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own]
    return [
        (socket.inet_ntoa(bytes.fromhex(host)[::-1]), int(port, 16))
        for host, port in (address.split(":") for address in mine)
    ]


def check_connections_of_a_stranger(me: Rank, path: str) -> None:
    with environment(GTOPK_SECRET=SECRET, UCX_TLS="tcp,self"):
        join_over_file(me, pathlib.Path(path))
        places = listening()
        assert places
        strangers = []
        # Before the ranks first talk to each other, and later.
        for sent in (b"", bytes(4096), b"GTUX" * 10_000):
            for place in places:
                strangers.append(socket.create_connection(place, 10))
                strangers[-1].sendall(sent)
            expect_sum(me)
        dist.destroy_process_group()


def test_a_stranger_who_connects_disturbs_nobody(two_apart: RankSet, tmp_path) -> None:
    two_apart.run(check_connections_of_a_stranger, str(tmp_path / "store"))
