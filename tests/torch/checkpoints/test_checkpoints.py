"""``gtopk.save`` and ``gtopk.load``: killed runs, and other numbers of ranks."""

from __future__ import annotations

import itertools
import os
import pathlib
import random
import signal
from contextlib import nullcontext
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn

import gtopk
from helpers.checkpoints import path_of, shared_folder
from helpers.ranks import Rank, RankError, RankSet
from helpers.training import Training, batch, equal, flat, network, replicas_are_bitwise_equal

pytestmark = pytest.mark.loopback

ARGUMENTS = {
    "density": 0.02,
    "unit": 8 * 1024,
    "momentum": 0.9,
    "warmup": [("dense", 2), (0.1, 3)],
    "select": "threshold",
}


class Mixed(Training):
    """With autocast, a scale that overflows now and then, and momentum before the sum."""

    def __init__(self, rank: int, *, seed: int = 0, group=None) -> None:
        super().__init__(rank, model=network(seed), group=group)
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), lr=0.05)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**124, growth_interval=3)
        self.state = gtopk.attach(self.ddp, scaler=self.scaler, **ARGUMENTS)
        self.losses: list[float] = []  # of all steps, those before a restart as well

    def step(self) -> float:
        self.optimizer.zero_grad()
        x, labels = batch(self.rank, self.at)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(self.ddp(x).float(), labels)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.at += 1
        self.losses.append(loss.item())
        return self.losses[-1]

    def parts(self) -> dict:
        return {"model": self.model, "optimizer": self.optimizer, "scaler": self.scaler}

    def save(self, folder: pathlib.Path) -> None:
        """This rank's own state in a file, and all ranks' residuals; a complete save has both."""
        to = folder / str(self.at)
        to.mkdir(exist_ok=True)
        parts = {name: part.state_dict() for name, part in self.parts().items()}
        torch.save({**parts, "losses": self.losses}, to / f"{self.rank}.pt")
        gtopk.save(self.state, to / "gtopk")

    def load(self, folder: pathlib.Path) -> None:
        """Loads the last complete save, if there is one."""
        there = [int(each.parent.parent.name) for each in folder.glob("*/gtopk/CURRENT")]
        if not there:
            return
        self.at = max(there)
        saved = torch.load(folder / str(self.at) / f"{self.rank}.pt", weights_only=True)
        for name, part in self.parts().items():
            part.load_state_dict(saved[name])
        self.losses = saved["losses"]
        gtopk.load(self.state, folder / str(self.at) / "gtopk")

    def everything(self) -> list[torch.Tensor]:
        saved = self.state.state_dict()
        kept = [
            *saved["residuals"].values(),
            *saved["momenta"].values(),
            *saved["selector"]["states"],
        ]
        return [flat(self.model).clone(), torch.tensor(self.scaler.get_scale()), *kept]


def check_a_run_goes_on_bit_for_bit_from_any_step(me: Rank) -> None:
    folder = shared_folder(me)
    undisturbed = Mixed(me.rank)
    stops = sorted(random.Random(7).sample(range(1, 12), 3))
    losses, scales = [], []
    for step in range(12):
        scales.append(undisturbed.scaler.get_scale())
        if step in stops:
            undisturbed.save(path_of(folder))
            again = Mixed(me.rank, seed=99)
            again.load(path_of(folder))
            resumed = (step, again)
        losses.append(undisturbed.step())
        if step + 1 in (*stops, 12) and step >= stops[0]:
            begin, again = resumed
            assert [again.step() for _ in range(begin, step + 1)] == losses[begin:]
            assert equal(again.everything(), undisturbed.everything()), (begin, step)
    assert any(after < before for before, after in itertools.pairwise(scales)), "none overflowed"
    assert undisturbed.state.step == 12
    dist.barrier()


def sums(state: gtopk.SparseState, kind: str) -> dict[str, torch.Tensor]:
    """Sums over the ranks of the state's group, in float64."""
    mine = {name: each.double() for name, each in state.state_dict()[kind].items()}
    for each in mine.values():
        dist.all_reduce(each, group=state.group)
    return mine


def check_momenta_come_back_where_nothing_has_a_residual(me: Rank) -> None:
    """On fewer ranks, with all parameters too small to be sparse."""
    few = dist.new_group([0, 1])
    folder = shared_folder(me)
    arguments = {"density": 0.02, "momentum": 0.9, "min_numel": 10**6}
    training = Training(me.rank)
    state = training.hooked(**arguments)
    training.steps(3)
    expected = sums(state, "momenta")
    gtopk.save(state, path_of(folder) / "all")
    if me.rank < 2:
        state = Training(me.rank, group=few).hooked(group=few, **arguments)
        gtopk.load(state, path_of(folder) / "all")
        seen = sums(state, "momenta")
        assert seen.keys() == expected.keys()
        assert any(each.any() for each in expected.values())
        for name, each in expected.items():
            torch.testing.assert_close(seen[name], each, rtol=1e-6, atol=1e-7)
    dist.barrier()


def check_other_ranks_share_what_was_saved(me: Rank) -> None:
    """4 -> 3 -> 4 and 2 -> 4 ranks: the sums over ranks are kept, and training continues."""
    groups = {ranks: dist.new_group(list(range(ranks))) for ranks in (2, 3, 4)}
    sparse, dense = {"density": 0.02}, {"algorithm": "dense", "wire": "4bit"}
    for chain, arguments in (((4, 3, 4), sparse), ((2, 4), sparse), ((4, 3), dense)):
        folder = shared_folder(me)
        model = network().state_dict()
        for number, ranks in enumerate(chain):
            group = groups[ranks]
            if me.rank < ranks:
                training = Training(me.rank, group=group)
                training.model.load_state_dict(model)
                state = training.hooked(**arguments, momentum=0.9, group=group)
                if number:
                    before = {
                        kind: torch.load(path_of(folder) / kind)
                        for kind in ("residuals", "momenta")
                    }
                    assert gtopk.load(state, path_of(folder) / str(number - 1)) == ([], [])
                    for kind, expected in before.items():
                        seen = sums(state, kind)
                        assert seen.keys() == expected.keys()
                        for name, each in expected.items():
                            torch.testing.assert_close(seen[name], each, rtol=1e-6, atol=1e-7)
                    empty = me.rank >= chain[number - 1]
                    assert state.residual("0.weight").any().item() != empty
                    assert state.step == 5 * number
                training.at = 5 * number
                training.steps(5)
                gtopk.save(state, path_of(folder) / str(number))
                summed = {kind: sums(state, kind) for kind in ("residuals", "momenta")}
                if me.rank == 0:
                    for kind, each in summed.items():
                        torch.save(each, path_of(folder) / kind)
                model = training.model.state_dict()
            dist.barrier()
            weights = [model]
            dist.broadcast_object_list(weights)
            model = weights[0]
        assert chain[-1] < me.size or replicas_are_bitwise_equal(training.model)
        dist.barrier()


def check_what_cannot_be_loaded_is_named_on_every_rank(me: Rank) -> None:
    folder = shared_folder(me)
    path = path_of(folder)
    state = gtopk.SparseState(network().named_parameters())
    missing = FileNotFoundError if me.rank == 0 else RuntimeError
    with pytest.raises(missing, match="nothing holds no checkpoint: there is no such folder"):
        gtopk.load(state, path / "nothing")
    gtopk.save(state, path / "saved")
    # As on a file system that one rank does not see.
    there = path / ("saved" if me.rank != 2 else "elsewhere")
    state.residual("0.weight").fill_(1)
    with pytest.raises((FileNotFoundError, RuntimeError)) as told:
        gtopk.load(state, there)
    assert isinstance(told.value, RuntimeError) == (me.rank != 2)
    assert "elsewhere" in str(told.value)
    assert state.residual("0.weight").all()
    # As on one whose file of that rank is cut short, and one where it is gone.
    file = path / "saved" / "version-1" / "__2_0.distcp"
    for damage in (lambda: os.truncate(file, file.stat().st_size // 2), file.unlink):
        dist.barrier()
        if me.rank == 2:
            damage()
        dist.barrier()
        what = (
            "damaged or could not be read" if file.exists() else "not complete: files are missing"
        )
        with pytest.raises(RuntimeError, match=f"saved/version-1 is {what}") as told:
            gtopk.load(state, path / "saved")
        if not file.exists():
            assert str(file) in str(told.value)
        assert str(told.value).startswith("gtopk: rank 2 failed: ") == (me.rank != 2)
        assert str(told.value).count("gtopk: ") == 1
        assert state.residual("0.weight").all()
    gtopk.save(state, path / "whole")
    with pytest.raises(TypeError, match="must be a SparseState, given a dict"):
        gtopk.load(state.state_dict(), path / "whole")
    import torch.distributed.checkpoint as dcp

    dcp.save({"weight": torch.zeros(3)}, checkpoint_id=path / "foreign")
    with pytest.raises(ValueError, match=r"is not a checkpoint of gtopk\.save: it has no 'gtopk'"):
        gtopk.load(state, path / "foreign")
    text = torch.frombuffer(bytearray(b'{"ranks": 4}'), dtype=torch.uint8)
    dcp.save({"gtopk": text}, checkpoint_id=path / "other")
    with pytest.raises(ValueError, match=r"checkpoint of gtopk\.save, given \{'ranks': 4\}"):
        gtopk.load(state, path / "other")
    other = gtopk.SparseState(nn.Linear(64, 64).named_parameters())
    with pytest.raises(ValueError, match="the saved state is for other parameters"):
        gtopk.load(other, path / "whole")
    assert gtopk.load(other, path / "whole", strict=False).missing_keys == ["weight"]
    with pytest.raises((ValueError, RuntimeError), match="saved state is for other parameters"):
        gtopk.load(other, path / "whole", strict=me.rank == 2)
    state.step = me.rank
    with pytest.raises(ValueError, match="step is"):
        gtopk.save(state, path / "differs")
    dist.barrier()


def check_save_path_mismatch_fails_every_rank_and_writes_nothing(me: Rank) -> None:
    folder = shared_folder(me)
    state = gtopk.SparseState(network().named_parameters())
    own = path_of(folder) / ("own" if me.rank == 1 else "all")
    other = r"'\S+all' here and '\S+own' on rank 1" if me.rank != 1 else r"own'.*all' on rank 0"
    with pytest.raises(ValueError, match=rf"different path on rank {me.rank} than .*{other}"):
        gtopk.save(state, own)
    dist.barrier()
    assert not any(path_of(folder).iterdir())
    dist.barrier()


def check_files_unseen_by_rank_0_fail_save_and_load_on_all_ranks(me: Rank) -> None:
    """As on file systems of their own: what rank 2 writes is gone before rank 0 looks for it."""
    folder = shared_folder(me)
    path = path_of(folder) / "saved"
    state = gtopk.SparseState(network().named_parameters())
    exists = os.path.exists

    def unseen(file: str) -> bool:
        return "__2_0" not in str(file) and exists(file)

    hidden = mock.patch("os.path.exists", unseen) if me.rank == 0 else nullcontext()
    error = FileNotFoundError if me.rank == 0 else RuntimeError
    with hidden, pytest.raises(error, match=r"does not see \S*__2_0\.distcp, .* share"):
        gtopk.save(state, path)
    with pytest.raises(error, match=r"neither CURRENT nor \.metadata is there"):
        gtopk.load(state, path)
    dist.barrier()
    gtopk.save(state, path)
    gtopk.load(state, path)
    dist.barrier()


def test_on_four_ranks(four: RankSet, check) -> None:
    four.run(check)


def test_one_process_without_a_group(tmp_path) -> None:
    state = gtopk.SparseState(network().named_parameters(), select="threshold")
    state.residual("0.weight").normal_()
    state.unit_selector_state(0)[0] = 3
    gtopk.save(state, tmp_path / "saved")
    other = gtopk.SparseState(network().named_parameters(), select="threshold")
    gtopk.load(other, tmp_path / "saved")
    assert torch.equal(state.residual("0.weight"), other.residual("0.weight"))
    assert other.unit_selector_state(0)[0] == 3


STEPS, KILLS = 60, 20


def run_until_killed(me: Rank, folder: str, seed: int) -> list[bytes]:
    """Resume, train and save after every step; seed says who dies when, 0 for nobody."""
    training = Mixed(me.rank)
    training.load(pathlib.Path(folder))
    chance = random.Random(seed)
    dies = training.at + chance.randrange(3) if seed else STEPS
    moment, victim = chance.choice(("backward", "save", "step")), chance.randrange(me.size)

    def die(*_: object) -> None:
        if training.at == dies + (moment == "save") and me.rank == victim:
            os.kill(os.getpid(), signal.SIGKILL)

    if moment == "backward":
        training.model[5].weight.register_hook(die)
    while training.at < STEPS:
        if moment == "step":
            die()
        training.step()
        # Files are synchronised before .metadata is written, which makes the save valid.
        with mock.patch("os.fsync", die) if moment == "save" else nullcontext():
            training.save(pathlib.Path(folder))
    losses = torch.tensor(training.losses, dtype=torch.float64)
    assert len(losses) == STEPS
    return [each.numpy().tobytes() for each in (losses, *training.everything())]


@pytest.mark.long
def test_twenty_runs_that_are_killed_end_as_one_that_is_not(four: RankSet, tmp_path) -> None:
    for name in ("undisturbed", "killed"):
        (tmp_path / name).mkdir()
    expected = four.run(run_until_killed, str(tmp_path / "undisturbed"), 0)
    with RankSet(4) as ranks:
        for seed in range(1, KILLS + 1):
            with pytest.raises(RankError, match="ended with code -9"):
                ranks.run(run_until_killed, str(tmp_path / "killed"), seed)
        ended = ranks.run(run_until_killed, str(tmp_path / "killed"), 0)
    assert ended == expected
