"""gtopk.save into a folder that holds a checkpoint: the old state or the new."""

from __future__ import annotations

import errno
import itertools
import os
import pathlib
import shutil
import signal
import threading
from collections.abc import Callable
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from gtopk.training import checkpoint as saving
from gtopk.training import folders

import gtopk
from helpers.checkpoints import path_of, shared_folder
from helpers.fsdp import Training
from helpers.ranks import Rank, RankError, RankSet, run_script
from helpers.saves import Step, failing, raise_error
from helpers.training import network

pytestmark = pytest.mark.loopback

OLD, NEW = 3, 7  # steps, by which states are known


STEPS = {
    "before anything": Step(folders, "begin", 0),
    "with the folder of the version made": Step(folders, "begin", 0, after=True),
    "before a rank's tensors": Step(saving, "_tensors_of", 1),
    "while a rank writes": Step(os, "fsync", 2),
    "with all files written": Step(dcp.FileSystemWriter, "finish", 0),
    "with .metadata written": Step(dcp.FileSystemWriter, "finish", 0, after=True),
    "with all files seen": Step(saving, "_check_seen", 0, after=True),
    "before CURRENT": Step(folders, "commit", 0),
    "with the next CURRENT written": Step(os, "replace", 0, only="CURRENT"),
    "with CURRENT renamed": Step(os, "replace", 0, only="CURRENT", after=True, new=True),
    "before the old version is removed": Step(folders, "remove_others", 0, new=True),
    "while the old version is removed": Step(shutil, "rmtree", 0, new=True),
    "after everything": Step(folders, "remove_others", 0, after=True, new=True),
}


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def state_at(step: int, state: gtopk.SparseState) -> gtopk.SparseState:
    """The state with the residuals of a rank at that step; -1: with none of them."""
    generator = torch.Generator().manual_seed(100 * step + (dist.get_rank() if step >= 0 else 0))
    for unit in state.units:
        for each in unit.large:
            state.residual(each.name).normal_(generator=generator)
    state.step = max(0, step)
    return state


def plain(me: Rank) -> gtopk.SparseState:
    return gtopk.SparseState(network().named_parameters(), density=0.02)


def sharded(me: Rank) -> gtopk.SparseState:
    return Training(me, density=0.1).state


def check_holds(folder: pathlib.Path, step: int, make: Callable, me: Rank) -> None:
    """All ranks load the state of that step, bit for bit."""
    loaded = state_at(-1, make(me))
    assert gtopk.load(loaded, folder) == ([], [])
    assert loaded.step == step
    expected = state_at(step, make(me)).state_dict()["residuals"]
    seen = loaded.state_dict()["residuals"]
    assert seen.keys() == expected.keys() != set()
    assert all(torch.equal(seen[name], expected[name]) for name in seen)


def flatten(folder: pathlib.Path) -> None:
    """As earlier versions of gtopk wrote it."""
    (version,) = folder.glob("version-*")
    for each in version.iterdir():
        each.rename(folder / each.name)
    version.rmdir()
    (folder / "CURRENT").unlink()


def save_old(folder: pathlib.Path, make: Callable, me: Rank, *, flat: bool) -> None:
    gtopk.save(state_at(OLD, make(me)), folder)
    dist.barrier()
    if flat and me.rank == 0:
        flatten(folder)
    dist.barrier()


def check_only_the_last_is_left(folder: pathlib.Path, make: Callable, me: Rank) -> None:
    gtopk.save(state_at(NEW, make(me)), folder)
    check_holds(folder, NEW, make, me)
    dist.barrier()
    left = {each.name for each in folder.iterdir()}
    (version,) = folder.glob("version-*")
    assert left == {"CURRENT", version.name}, left
    dist.barrier()


def fails_at_every_step(me: Rank, name: str, make: Callable) -> None:
    """A rank raises; then a save succeeds."""
    step = STEPS[name]
    folder = path_of(shared := shared_folder(me))
    for before in ("version", "flat", "nothing"):
        where = folder / before
        if before != "nothing":
            save_old(where, make, me, flat=before == "flat")
        if before != "version" and step.owner is shutil:
            continue  # no version to remove
        raised = None
        with failing(step, me, raise_error):
            try:
                gtopk.save(state_at(NEW, make(me)), where)
            except Exception as error:
                raised = error
        if me.rank == step.rank and step.name != "rmtree":
            assert "no space left" in str(raised)
        if not step.new:
            text = str(raised)
            assert "no space left" in text, text
            assert me.rank == step.rank or f"rank {step.rank}" in text, text
        dist.barrier()
        if step.new or before != "nothing":
            check_holds(where, NEW if step.new else OLD, make, me)
        else:
            with pytest.raises((FileNotFoundError, RuntimeError), match="holds no checkpoint"):
                gtopk.load(make(me), where)
        dist.barrier()
        check_only_the_last_is_left(where, make, me)
    del shared


def saves_old(me: Rank, folder: str, make: Callable, flat: bool) -> None:
    save_old(pathlib.Path(folder), make, me, flat=flat)


def dies_in_a_save(me: Rank, folder: str, name: str, make: Callable) -> None:
    new = state_at(NEW, make(me))
    dist.barrier()
    with failing(STEPS[name], me, die):
        gtopk.save(new, folder)


def resumes(me: Rank, folder: str, step: int, make: Callable) -> None:
    check_holds(pathlib.Path(folder), step, make, me)
    dist.barrier()
    check_only_the_last_is_left(pathlib.Path(folder), make, me)


@pytest.mark.parametrize(
    "make", [plain, pytest.param(sharded, marks=pytest.mark.long)], ids=["ranks", "shards"]
)
@pytest.mark.parametrize("name", STEPS)
def test_save_failing_on_a_rank_leaves_the_old_state_or_the_new(
    four: RankSet, name: str, make: Callable
) -> None:
    four.run(fails_at_every_step, name, make)


@pytest.mark.parametrize("make", [plain, pytest.param(sharded, marks=pytest.mark.long)])
def test_save_with_a_killed_rank_leaves_the_old_state_or_the_new(make: Callable, tmp_path) -> None:
    """At each step in turn, over a version and over what an earlier gtopk wrote."""
    with RankSet(4) as ranks:
        for number, (name, step) in enumerate(STEPS.items()):
            folder, flat = str(tmp_path / str(number)), number % 2 == 0 and step.owner is not shutil
            ranks.run(saves_old, folder, make, flat)
            with pytest.raises(RankError, match="ended with code -9"):
                ranks.run(dies_in_a_save, folder, name, make)
            ranks.run(resumes, folder, NEW if step.new else OLD, make)


def check_second_save_replaces_the_first_and_keeps_other_files(me: Rank) -> None:
    folder = path_of(shared := shared_folder(me))
    if me.rank == 0:
        (folder / "version-notes").mkdir()
        (folder / "model.safetensors").write_text("weights")
    dcp.save({"weight": torch.ones(3)}, checkpoint_id=folder)  # of the same ranks, not gtopk's
    for step in (OLD, NEW):
        gtopk.save(state_at(step, plain(me)), folder)
        check_holds(folder, step, plain, me)
    dist.barrier()
    names = {each.name for each in folder.iterdir()}
    ours = {"CURRENT", "version-2"}
    assert {"version-notes", "model.safetensors", ".metadata"} <= names - ours
    assert len([each for each in names if each.startswith("version-")]) == 2
    weight = {"weight": torch.zeros(3)}
    dcp.load(weight, checkpoint_id=folder)
    assert weight["weight"].all()
    dist.barrier()
    del shared


def check_overwrite_false_is_refused_on_every_rank(me: Rank) -> None:
    folder = path_of(shared := shared_folder(me))
    for flat in (False, True):
        where = folder / str(flat)
        for make, other in ((plain, sharded), (sharded, plain)):
            name = where / make.__name__
            gtopk.save(state_at(OLD, make(me)), name, overwrite=False)
            dist.barrier()
            if flat and me.rank == 0:
                flatten(name)
            dist.barrier()
            error = FileExistsError if me.rank == 0 else RuntimeError
            for each in (make, other):
                with pytest.raises(error, match="already holds a checkpoint: save into another"):
                    gtopk.save(state_at(NEW, each(me)), name, overwrite=False)
            check_holds(name, OLD, make, me)
            # Shards take the place of ranks, and ranks of shards.
            gtopk.save(state_at(NEW, other(me)), name)
            check_holds(name, NEW, other, me)
    dist.barrier()
    del shared


def check_readers_take_the_next_version_when_theirs_is_removed(me: Rank) -> None:
    folder = path_of(shared := shared_folder(me))
    find = saving._found
    for make in (plain, sharded):
        where = folder / make.__name__
        save_old(where, make, me, flat=False)
        steps = iter((NEW, NEW + 1))

        def read_late(*arguments, where=where, make=make, steps=steps, **named):
            # Between reading CURRENT and the version; the first two times.
            for step in itertools.islice(steps, 1):
                gtopk.save(state_at(step, make(me)), where)
                dist.barrier()
            return find(*arguments, **named)

        with mock.patch.object(saving, "_found", read_late):
            check_holds(where, NEW + 1, make, me)
        assert next(steps, None) is None
    dist.barrier()
    del shared


def test_on_four_ranks(four: RankSet, check) -> None:
    four.run(check)


READER = """
import gtopk
from torch import nn
state = gtopk.SparseState(nn.Linear(200, 200).named_parameters(), density=0.1)
last = 0
while last < 40:
    gtopk.load(state, {folder!r})
    values = state.residual("weight")
    assert (values == state.step).all(), (state.step, values)
    assert state.step >= last
    last = state.step
"""


def test_a_reader_beside_a_writer_sees_whole_states(tmp_path) -> None:
    """One process loads as often as it can while another saves forty times."""
    state = gtopk.SparseState(torch.nn.Linear(200, 200).named_parameters(), density=0.1)

    def save(step: int) -> None:
        state.step = step
        state.residual("weight").fill_(step)
        gtopk.save(state, tmp_path / "saved")

    save(1)
    done = []
    reader = threading.Thread(
        target=lambda: done.append(run_script(READER.format(folder=str(tmp_path / "saved"))))
    )
    reader.start()
    for step in range(2, 41):
        save(step)
    reader.join()
    assert done[0].returncode == 0, done[0].stderr


def one_state(step: int = 0) -> gtopk.SparseState:
    state = gtopk.SparseState(torch.nn.Linear(64, 64).named_parameters())
    state.step = step
    return state


BROKEN = {
    "nothing": (lambda _: None, FileNotFoundError, "holds no checkpoint: neither CURRENT nor"),
    "no folder": (lambda saved: saved.rmdir(), FileNotFoundError, "there is no such folder"),
    "an unfinished version": (
        lambda saved: (saved / "version-1").mkdir(),
        FileNotFoundError,
        r"CURRENT, which is written last, is missing beside version-1. Load another checkpoint; "
        r"the next gtopk\.save into this folder replaces",
    ),
    "unfinished without versions": (
        lambda saved: (saved / "__0_0.distcp").touch(),
        FileNotFoundError,
        r"\.metadata, which is written last, is missing beside __0_0\.distcp",
    ),
    "a version that was not copied": (
        lambda saved: (saved / "CURRENT").write_text("version-4\n"),
        FileNotFoundError,
        "CURRENT names version-4, which does not exist: copy the whole folder",
    ),
    "CURRENT of zeros": (
        lambda saved: (saved / "CURRENT").write_bytes(b"\0" * 10),
        ValueError,
        "CURRENT must name a version, such as version-1, but contains",
    ),
    "a version without .metadata": (
        lambda saved: (gtopk.save(one_state(), saved), (saved / "version-1/.metadata").unlink()),
        FileNotFoundError,
        r"version-1 holds no complete checkpoint: there is no \.metadata",
    ),
    "a version without data": (
        lambda saved: (gtopk.save(one_state(), saved), (saved / "version-1/__0_0.distcp").unlink()),
        RuntimeError,
        r"version-1 is not complete: files are missing \(1\), such as \S*__0_0\.distcp",
    ),
}


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("name", BROKEN)
def test_load_says_what_broken_folder_lacks_and_save_repairs_it(
    name: str, strict: bool, tmp_path
) -> None:
    breaks, error, text = BROKEN[name]
    saved = tmp_path / "saved"
    saved.mkdir()
    breaks(saved)
    with pytest.raises(error, match=text):
        gtopk.load(one_state(), saved, strict=strict)
    gtopk.save(one_state(5), saved)
    loaded = one_state()
    gtopk.load(loaded, saved, strict=strict)
    assert loaded.step == 5


def test_failed_removal_of_old_version_warns_and_new_one_loads(tmp_path) -> None:
    gtopk.save(one_state(1), tmp_path)
    with (
        mock.patch("shutil.rmtree"),
        pytest.warns(UserWarning, match="earlier saves could not be removed: .*/version-1"),
    ):
        gtopk.save(one_state(2), tmp_path)
    loaded = one_state()
    gtopk.load(loaded, tmp_path)
    assert loaded.step == 2
    gtopk.save(one_state(3), tmp_path)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["CURRENT", "version-3"]


def test_folder_fsync_einval_is_ignored_and_eio_is_raised(tmp_path) -> None:
    cannot = OSError(errno.EINVAL, "Invalid argument")
    with mock.patch.object(folders.os, "fsync", side_effect=cannot):
        folders._synchronise(str(tmp_path))
    with (
        mock.patch.object(folders.os, "fsync", side_effect=OSError(errno.EIO, "broken disk")),
        pytest.raises(OSError, match="broken disk"),
    ):
        folders._synchronise(str(tmp_path))
