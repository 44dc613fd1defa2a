"""Which Python tests depend on torch's version, what their processes do not inherit, how long a
test may take, and what modules share: the ranks of their checks, and what was built.
"""

from __future__ import annotations

import faulthandler
import os
import pathlib
import signal
from collections.abc import Generator, Iterator

import pytest

import fake
from helpers.checks import checks_of
from helpers.ranks import RankSet

# Where it is set, print() writes a line's text and its end by two calls: lines of ranks that share
# one output run together.
os.environ.pop("PYTHONUNBUFFERED", None)
# torch's store looks up the name of each client's address. Where a name server drops queries, each
# dropped one takes glibc's default of 5 s.
os.environ.setdefault("RES_OPTIONS", "timeout:1")

# These modules run with the newest torch, too: they go through torch's collectives, DDP, FSDP,
# compiler, optimizers, scalers, Works or futures. All others run with one torch alone: tests of
# tools, the wheel, the lab, frameworks and the tests themselves, of arithmetic, of arguments and
# their errors, of processes that start, wait and end, of devices, and those that show more of what
# these show.
WITH_EVERY_TORCH = {
    "test_collectives",
    "test_compiled",
    "test_complex",
    "test_ddp",
    "test_fsdp",
    "test_fsdp_switches",
    "test_internals",
    "test_mesh_backends",
    "test_newer_torch",
    "test_optimizer",
    "test_outer_shards",
    "test_outer_shards_saved",
    "test_parallel",
    "test_reusable",
    "test_scaler",
    "test_smoke",
    "test_stock_hooks",
    "test_stores",
    "test_upstream",
    "test_windows",
    "test_work_results",
    "test_works",
}
TESTS_WITH_EVERY_TORCH = {
    "test_by_name_torch_finds_it_without_autoloading",
    "test_the_backend_is_found_without_an_import",
    "test_torchrun_runs_a_training",
    "test_without_autoloading_an_import_registers_it",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.stem not in WITH_EVERY_TORCH and item.name not in TESTS_WITH_EVERY_TORCH:
            item.add_marker(pytest.mark.once)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "longest", "seconds that a test may take, unless it is labelled long", default=1200
    )
    parser.addoption(
        "--minutes", type=float, help="of the soak (60) and of the fuzz (60) among what is long"
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test that hangs fails and shows every thread's stack; what it started is ended."""
    if item.get_closest_marker("long"):
        return (yield)
    longest = float(item.config.getini("longest"))

    def end(*_: object) -> None:
        faulthandler.dump_traceback(2)  # which pytest captures
        pytest.fail(f"not done after {longest:g} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, longest, longest)  # again, if its clean-up hangs as well
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="session")
def four() -> Iterator[RankSet]:
    with RankSet(4) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def one() -> Iterator[RankSet]:
    with RankSet(1) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def three() -> Iterator[RankSet]:
    with RankSet(3) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def two() -> Iterator[RankSet]:
    with RankSet(2) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def two_apart() -> Iterator[RankSet]:
    """Without a group, which checks make themselves."""
    with RankSet(2, joins=False) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def three_apart() -> Iterator[RankSet]:
    with RankSet(3, joins=False) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def six_apart() -> Iterator[RankSet]:
    with RankSet(6, joins=False) as ranks:
        yield ranks


@pytest.fixture(scope="session")
def wheel(pytestconfig: pytest.Config) -> pathlib.Path:
    built = list(pathlib.Path(pytestconfig.rootpath, "dist").glob("gtopk-*.whl"))
    assert len(built) == 1, f"tools/wheel leaves one wheel in dist/: {built}"
    return built[0]


@pytest.fixture(scope="session")
def fake_library(pytestconfig: pytest.Config) -> str:
    return fake.build(pathlib.Path(pytestconfig.rootpath, "build", "fake"))


@pytest.fixture(scope="session")
def fake_gpu(pytestconfig: pytest.Config) -> str:
    """For programs without torch."""
    return fake.build_without_torch(pathlib.Path(pytestconfig.rootpath, "build", "fake"))


@pytest.fixture(scope="session")
def two_with_device(fake_library: str) -> Iterator[RankSet]:
    with RankSet(2, device=fake_library) as ranks:
        yield ranks


@pytest.fixture(scope="session")
def two_in_place(fake_library: str) -> Iterator[RankSet]:
    """Whose network takes the fake device's memory, which all may read here."""
    with RankSet(2, device=fake_library, in_place=True) as ranks:
        yield ranks


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "check" in metafunc.fixturenames:
        checks = checks_of(metafunc.module)
        metafunc.parametrize("check", checks, ids=lambda check: check.__name__)
