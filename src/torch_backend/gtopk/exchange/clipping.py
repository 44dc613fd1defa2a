"""Local clipping: gradients are scaled down to a norm before anything is accumulated.

Deep Gradient Compression (Lin et al., arXiv 1712.01887), section 3.2: each of P ranks clips its own
gradient at c / sqrt(P). If the ranks' gradients are independent, their sum then has about the norm
that clipping the sum at c would give. Residuals hold clipped gradients, and are not clipped again.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gtopk.exchange.shards import norm_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gtopk.exchange.shards import Shards
    from gtopk.exchange.unit_exchange import ExactBucket, Exchange
    from gtopk.state.config import Config
    from gtopk.state.units import Unit


class Clipper:
    """Clips the gradients of one backward, and holds them until their norm is known."""

    def __init__(
        self,
        config: Config,
        units: Sequence[Unit],
        ranks: int,
        scale: float,
        parts: int,
        shards: Shards | None,
    ) -> None:
        """Expect this many parts. scale: the factor by which the loss was multiplied."""
        self._config = config
        self._units = units
        self._ranks = ranks
        self._scale = scale
        self._parts = parts
        self._shards = shards
        self._ready: list[Exchange] = []  # complete, held until the norm of all is known
        self._exact: list[ExactBucket] = []

    def clipped(
        self, ready: list[Exchange], exact: list[ExactBucket]
    ) -> tuple[list[Exchange], list[ExactBucket]]:
        """Clip ready units; return those to start now, which with clip="model" are all or none."""
        if self._config.clip_norm is None:
            return ready, exact
        if self._config.clip == "unit":
            for exchange in ready:
                self._clip([exchange], [])
            for each in exact:
                self._clip([], [each])
            return ready, exact
        self._ready += ready
        self._exact += exact
        # With shards, only the end of the backward shows which modules took part: see held().
        if self._shards is not None or len(self._ready) + len(self._exact) < self._parts:
            return [], []
        starting = self.held()
        apart, self._exact = self._exact, []
        return starting, apart

    def held(self) -> list[Exchange]:
        """Clip the held units together and return them."""
        ready, self._ready = self._ready, []
        if ready or self._exact:
            self._clip(ready, self._exact)
        return ready

    def _clip(self, exchanges: Sequence[Exchange], exact: Sequence[ExactBucket]) -> None:
        """Scale these gradients down to the norm ``clip_norm / sqrt(ranks)``.

        Gradients with a smaller norm are unchanged. Gradients whose norm is not finite are
        unchanged too, because their step does not happen.
        """
        if self._shards is not None:
            norm = self._shards.norm(self._units, exchanges)
        else:
            norms = [norm_of([*each.large, each.small]) for each in exchanges]
            # Norms of units already exclude the loss scale.
            norm = math.hypot(*norms, *(each.norm() / self._scale for each in exact))
        assert self._config.clip_norm is not None
        most = self._config.clip_norm / math.sqrt(self._ranks)
        if not math.isfinite(norm) or norm <= most:
            return
        for exchange in exchanges:
            for piece in (*exchange.large, exchange.small):
                piece.mul_(most / norm)
            exchange.clipped = most / norm
        for each in exact:
            each.multiply(most / norm)
