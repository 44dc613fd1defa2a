"""Room: tests/torch. Sets of ranks that a module's checks share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ranks import RankSet


@pytest.fixture(scope="module")
def four() -> Iterator[RankSet]:
    with RankSet(4) as ranks:
        yield ranks
