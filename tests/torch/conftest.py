"""What modules share: the ranks of their checks, and what was built."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import fake
import pytest
from checks import checks_of
from ranks import RankSet


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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--minutes", type=float, help="of the soak (60) and of the fuzz (60) among what is long"
    )


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
