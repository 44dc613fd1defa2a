"""The recipe of docs/hosts.md for WireGuard, on two hosts of the lab."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys
import textwrap

import pytest
from netlab import Lab

from helpers.paths import ROOT
from helpers.ranks import WATCHDOG

pytestmark = pytest.mark.network

ALLREDUCE = str(pathlib.Path(sys.executable).parent / "gtopk-allreduce")
INFO = str(pathlib.Path(sys.executable).parent / "gtopk-info")
PAYLOAD = 4 * 65_536  # bytes of the tensor

# A host's sockets of wireguard-go are its own. The counters are read before the tunnel goes.
IN_THE_TUNNEL = """
folder=$1$RANK; shift
mkdir -p /var/run/wireguard && mount -t tmpfs tmpfs /var/run/wireguard || exit
wg-quick up "$folder/wg0.conf" > "$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
"$@"; code=$?
wg show wg0 transfer > "$folder/transfer"
wg-quick down "$folder/wg0.conf" >> "$folder/log" 2>&1
exit $code
"""


def recipe() -> str:
    """The file that the page shows."""
    page = (ROOT / "docs" / "hosts.md").read_text()
    (shown,) = re.findall(r"\n\n((?:    \[Interface\]\n)(?:    .+\n|\n)+)", page)
    return textwrap.dedent(shown)


def key_pair() -> tuple[str, str]:
    """A private key and its public one."""
    private = subprocess.run(["wg", "genkey"], capture_output=True, text=True, check=True).stdout
    public = subprocess.run(
        ["wg", "pubkey"], input=private, capture_output=True, text=True, check=True
    ).stdout
    return private.strip(), public.strip()


def filled_in(host: int, private: str, peer: str) -> str:
    """The recipe for host 0 or 1, as a reader fills it in."""
    mine, other = ("10.88.0.1", "10.88.0.2") if host == 0 else ("10.88.0.2", "10.88.0.1")
    text = recipe()
    for what, value in {
        "Address = 10.88.0.1/24": f"Address = {mine}/24",
        "AllowedIPs = 10.88.0.2/32": f"AllowedIPs = {other}/32",
        "<this host's private key>": private,
        "<the other host's public key>": peer,
        "<the other host's address>": f"10.77.0.{2 - host}",
    }.items():
        assert what in text
        text = text.replace(what, value)
    return text


CAN_MAKE_ONE = os.access("/dev/net/tun", os.R_OK | os.W_OK) and all(
    map(shutil.which, ("wg", "wg-quick", "wireguard-go"))
)


@pytest.mark.skipif(not CAN_MAKE_ONE, reason="needs wireguard-go and /dev/net/tun")
def test_two_hosts_exchange_through_wireguard_as_the_page_says(tmp_path: pathlib.Path) -> None:
    keys = [key_pair(), key_pair()]
    for host, (private, _) in enumerate(keys):
        folder = tmp_path / f"host{host}"
        folder.mkdir()
        (folder / "wg0.conf").write_text(filled_in(host, private, keys[1 - host][1]))
        (folder / "wg0.conf").chmod(0o600)
    inside = ("sh", "-c", IN_THE_TUNNEL, "sh", str(tmp_path / "host"))
    sizes = ["-b", str(PAYLOAD), "-e", str(PAYLOAD), "-n", "2", "-w", "0", "-a", "dense,gtopk"]
    with Lab(2, None) as lab:
        outcome = lab.run(
            [*inside, ALLREDUCE, *sizes, "--check", "--rendezvous", "10.88.0.1:29500"],
            timeout=WATCHDOG,
            env={"UCX_NET_DEVICES": "wg0", "GTOPK_LOG_LEVEL": "info"},
        )
        doctor = lab.run(
            [*inside, INFO, "--doctor", "--rendezvous", "10.88.0.1:29500"],
            timeout=WATCHDOG,
            env={"UCX_NET_DEVICES": "wg0"},
        )
    assert outcome.ok, outcome.report()
    assert doctor.ok, doctor.report()
    assert re.search(r"0 - 1   tcp/wg0  WireGuard, MTU 1420, \w+\n", doctor.ranks[0].output)
    assert "connects to host1" in outcome.ranks[0].output
    for rank in outcome.ranks:
        assert set(re.findall(r"connects to \S+ pid \d+ over (\S+)", rank.output)) == {"tcp/wg0"}
        received, sent = (tmp_path / f"host{rank.rank}" / "transfer").read_text().split()[1:]
        assert min(int(received), int(sent)) > PAYLOAD
