"""A process with the backend: found, started, left, broken, forked."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
import torch
from gtopk.core.groups import backend_of
from gtopk.ops.options import SparseOptions

import gtopk
from helpers.ranks import WATCHDOG, Rank, RankSet, descriptors, environment, run_script, threads

pytestmark = pytest.mark.loopback

ALONE = """
import torch, torch.distributed as dist
dist.init_process_group("gtopk", store=dist.HashStore(), rank=0, world_size=1)
"""


def ended_well(script: str, said: str = "", **env: str) -> None:
    """Exit code 0, and no output but `said`."""
    done = run_script(script, **env)
    assert (done.returncode, done.stdout.strip(), done.stderr.strip()) == (0, said, "")


def test_the_backend_is_found_without_an_import():
    script = f"""
import sys
import torch, torch.distributed as dist
assert "gtopk.core._native" not in sys.modules, "nothing native before it is needed"
assert "libucx" not in sys.modules
{ALONE}
assert dist.get_backend() == "gtopk"
tensor = torch.ones(3)
dist.all_reduce(tensor)
print(tensor.tolist(), dist.is_backend_available("gtopk"))
dist.destroy_process_group()
"""
    ended_well(script, "[1.0, 1.0, 1.0] True")


def test_without_autoloading_an_import_registers_it():
    script = f"""
import torch.distributed as dist
assert "gtopk" not in dist.Backend.backend_list
import gtopk
{ALONE}
print(dist.get_backend())
"""
    ended_well(script, "gtopk", TORCH_DEVICE_BACKEND_AUTOLOAD="0")


def test_by_name_torch_finds_it_without_autoloading():
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 14):
        pytest.skip("torch looks backends up by name from 2.14 on")
    script = f"""
{ALONE}
print(dist.get_backend(), dist.is_backend_available("gtopk"))
"""
    ended_well(script, "gtopk True", TORCH_DEVICE_BACKEND_AUTOLOAD="0")


def test_gtopk_may_be_imported_before_torch():
    ended_well(f"import gtopk\n{ALONE}\nprint(gtopk.stats()['operations'])", "0")


def test_one_rank_alone_selects_and_keeps_the_rest():
    script = f"""
import gtopk
{ALONE}
tensor, residual = torch.tensor([1.0, -3.0, 2.0]), torch.zeros(3)
gtopk.sparse_all_reduce(tensor, k=1, residual=residual, op=dist.ReduceOp.AVG)
print(tensor.tolist(), residual.tolist())
"""
    ended_well(script, "[0.0, -3.0, 0.0] [1.0, 0.0, 2.0]")


def test_a_spawned_child_finds_it_too(tmp_path: pathlib.Path):
    program = tmp_path / "spawns.py"
    program.write_text("""
import sys
import torch, torch.distributed as dist
import torch.multiprocessing as mp

def rank_main(rank, path):
    dist.init_process_group("gtopk", init_method=f"file://{path}", rank=rank, world_size=2)
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    assert tensor.sum().item() == 8
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(rank_main, (sys.argv[1],), nprocs=2)
    print("both")
""")
    command = [sys.executable, str(program), str(tmp_path / "store")]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=WATCHDOG, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "both\n", "")


def test_torchrun_runs_a_training(tmp_path: pathlib.Path):
    program = tmp_path / "train.py"
    # One write per line: print() may make several, and the ranks share the output.
    program.write_text("""
import sys, torch, torch.distributed as dist
dist.init_process_group("gtopk")
import gtopk
model = torch.nn.Linear(64, 64)
ddp = torch.nn.parallel.DistributedDataParallel(model)
state = gtopk.SparseState(model.named_parameters(), density=0.01)
ddp.register_comm_hook(state, gtopk.sparse_hook)
for _ in range(3):
    ddp(torch.randn(4, 64)).square().sum().backward()
sys.stdout.write(f"steps {state.step}\\n")
sys.stdout.flush()
""")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", str(program)]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=WATCHDOG, check=False
    )
    assert (done.returncode, done.stdout) == (0, "steps 3\nsteps 3\n"), done.stderr
    assert "gtopk" not in done.stderr
    assert "Error" not in done.stderr


# --- leaving


def test_exit_without_destroy_is_code_0_and_no_message():
    ended_well(ALONE)
    ended_well(f"{ALONE}\nwork = dist.all_reduce(torch.ones(1000), async_op=True)")
    script = f"""
import gtopk
{ALONE}
group = dist.new_group([0])
futures = [gtopk.sparse_all_reduce(torch.ones(100_000), k=5, async_op=True).get_future()]
futures.append(futures[0].then(lambda done: done.value()[0].sum().item()))
"""
    ended_well(script)


def check_leave(me: Rank, work: bool) -> None:
    """Ends this process with sends and collectives in flight, and nobody waiting for them."""
    import torch
    import torch.distributed as dist

    if work:
        after, before = (me.rank + 1) % me.size, (me.rank - 1) % me.size
        kept = [dist.isend(torch.ones(300_000), after), dist.irecv(torch.ones(300_000), before)]
        kept += [dist.all_reduce(torch.ones(50_000), async_op=True) for _ in range(5)]
        globals()["kept"] = kept


@pytest.mark.parametrize("work", [False, True], ids=["idle", "with works under way"])
def test_ranks_that_exit_without_destroy_end_well(work):
    with RankSet(3, destroys=False) as ranks:
        ranks.run(check_leave, work)
        assert ranks.ends() == [(0, "")] * 3


def check_fifty_rounds(me: Rank) -> None:
    """init, a collective, destroy: threads, descriptors and shared memory are as before."""
    import torch
    import torch.distributed as dist

    def held() -> tuple[int, int, int]:
        shared = sum(
            "/dev/shm/" in line or "SYSV" in line or "memfd" in line
            for line in pathlib.Path("/proc/self/maps").read_text().splitlines()
        )
        return len(threads()), len(descriptors()), shared

    after_first = None
    for incarnation in range(50):
        dist.init_process_group(
            "gtopk",
            store=dist.PrefixStore(f"round{incarnation // 2}", me.store),
            rank=me.rank,
            world_size=me.size,
        )
        tensor = torch.ones(1000)
        dist.all_reduce(tensor)
        assert tensor[0].item() == me.size
        gtopk.sparse_all_reduce(tensor, k=10)
        pair = dist.new_group([0, 1])
        dist.all_reduce(tensor, group=pair)
        dist.destroy_process_group()
        if incarnation == 0:
            after_first = held()
    assert held() == after_first, (after_first, held())


@pytest.mark.long
def test_fifty_inits_and_destroys_leave_nothing_behind():
    before = set(os.listdir("/dev/shm"))
    with RankSet(2, joins=False) as ranks:
        ranks.run(check_fifty_rounds, timeout=240)
        ids = [str(ranks.pid(rank)) for rank in range(2)]
    left = [name for name in set(os.listdir("/dev/shm")) - before if any(i in name for i in ids)]
    assert not left


def check_use_after_destroy(me: Rank) -> None:
    import torch
    import torch.distributed as dist

    group = dist.group.WORLD
    backend = backend_of(group)
    dist.destroy_process_group()
    with pytest.raises(dist.DistBackendError, match="has been destroyed"):
        backend.sparse_all_reduce([torch.ones(3)], SparseOptions(k=1))
    with pytest.raises(dist.DistBackendError, match=r"'(0|default_pg)' has been"):
        gtopk.sparse_all_reduce(torch.ones(3), k=1, group=group)
    with pytest.raises(ValueError, match=r"(?i)default process group has not been initialized"):
        gtopk.sparse_all_reduce(torch.ones(3), k=1)


def test_a_destroyed_group_says_that_it_is_gone():
    with RankSet(1) as ranks:
        ranks.run(check_use_after_destroy)


# --- broken


def broken_install(folder: pathlib.Path, library: str | None) -> dict[str, str]:
    """A copy of the package, ahead of the installed one, with another library."""
    package = folder / "gtopk"
    installed = pathlib.Path(gtopk.__file__).parent
    shutil.copytree(installed, package, ignore=shutil.ignore_patterns("*.so*", "__pycache__"))
    if library is not None:
        major, minor = torch.__version__.split(".")[:2]
        (package / f"_torch_{major}_{minor}.so").write_text(library)
    information = folder / "gtopk-0.0.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: gtopk\nVersion: 0.0.0\n")
    entry = "[torch.backends]\ngtopk = gtopk.core._autoload:register\n"
    (information / "entry_points.txt").write_text(entry)
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths)}


@pytest.mark.parametrize(
    ("library", "said"),
    [
        (None, r"no library for torch \S+; available for: none"),
        pytest.param(
            "not a library",
            r"the library _torch_\d_\d+\.so cannot be loaded",
            marks=pytest.mark.long,
        ),
    ],
    ids=["missing", "not a library"],
)
def test_broken_install_imports_torch_and_init_names_the_fault(tmp_path, library, said):
    env = broken_install(tmp_path, library)
    ended_well("import torch; print(torch.ones(2).sum().item())", "2.0", **env)
    done = run_script(ALONE, **env)
    assert done.returncode == 1
    assert re.search(f"^ImportError: gtopk: {said}", done.stderr, re.MULTILINE), done.stderr


def test_unsupported_torch_is_refused_and_no_library_is_loaded():
    script = f"""
import torch, torch.distributed as dist
torch.__version__ = "2.99.0+cpu"
try:
    {ALONE.splitlines()[-1]}
except ImportError as error:
    print(error)
print(any("gtopk/_torch_" in line for line in open("/proc/self/maps")))
"""
    done = run_script(script)
    assert done.returncode == 0, done.stderr
    message, loaded = done.stdout.splitlines()
    versions = re.fullmatch(
        r"gtopk: no library for torch 2\.99\.0\+cpu; available for: ([0-9., ]+)\. "
        "Install one of these versions of torch, or a gtopk that was built for this one",
        message,
    )
    assert versions, message
    assert ".".join(torch.__version__.split(".")[:2]) in versions[1].split(", ")
    assert loaded == "False"


def test_a_registration_that_fails_is_a_warning(tmp_path):
    env = broken_install(tmp_path, None)
    script = """
import torch, warnings
import torch.distributed as dist
from gtopk.core import _autoload
dist.Backend._plugins.clear()
def refuse(*_, **__):
    raise RuntimeError("another torch")
dist.Backend.register_backend = refuse
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    _autoload.register()
print(seen[0].message)
warnings.simplefilter("error")
_autoload.register()
"""
    said = "the torch.distributed backend gtopk is not available: RuntimeError('another torch')"
    ended_well(script, said, **env)


# --- forked


def test_a_forked_child_gets_an_error_that_says_what_to_do():
    script = f"""
import os, gtopk, warnings
warnings.filterwarnings("ignore", "This process .* is multi-threaded")  # Python 3.12's, of any fork
{ALONE}
dist.all_reduce(torch.ones(3))
child = os.fork()
if child == 0:
    for call in (lambda: dist.all_reduce(torch.ones(3)),
                 lambda: gtopk.sparse_all_reduce(torch.ones(3), k=1)):
        try:
            call()
            os._exit(1)
        except ValueError as error:
            if "was forked" not in str(error) or "spawn" not in str(error):
                os._exit(2)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
dist.all_reduce(torch.ones(3))
print("parent works on")
"""
    ended_well(script, "parent works on")


def test_a_data_loaders_forked_workers_leave_the_group_alone():
    script = f"""
{ALONE}
dist.all_reduce(torch.ones(3))
data = torch.utils.data.TensorDataset(torch.arange(8.0))
for _ in range(2):
    loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=2)
    total = torch.stack([batch.sum() for (batch,) in loader]).sum()
    dist.all_reduce(total)
print(total.item())
dist.destroy_process_group()
"""
    ended_well(script, "28.0")
