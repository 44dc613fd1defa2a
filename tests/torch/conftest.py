"""Room: tests/torch. The ranks that all modules' checks share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ranks import RankSet


@pytest.fixture(scope="session")
def four() -> Iterator[RankSet]:
    with RankSet(4) as ranks:
        yield ranks
