"""The data that replicas exchange ahead of a round: its number, and who takes part.

They also send a digest of the shared parameters, so that replicas that have drifted apart are found
in the next round.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from gtopk.core.groups import all_gather, meeting_place, ranks_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# The number of elements whose weighted sum is one step of a digest.
_CHUNK = 1 << 18
_BASE = 0x5DEECE66D


def digest_of(vectors: Iterable[torch.Tensor]) -> int:
    """Return 64 bits that almost certainly change with any of the vectors' bits.

    The sums are of integers, so the result is the same on every device and in every order.
    """
    digest = 0
    for vector in vectors:
        bits = vector.view(torch.int32 if vector.element_size() == 4 else torch.int64)
        weights = _weights(min(_CHUNK, len(bits)), bits.device)
        total = torch.zeros((), dtype=torch.int64, device=bits.device)
        for chunk in torch.split(bits, _CHUNK):
            total.mul_(_BASE).add_((chunk * weights[: len(chunk)]).sum())
        digest = digest * _BASE + int(total)
    return (digest + 2**63) % 2**64 - 2**63


def _weights(count: int, device: torch.device) -> torch.Tensor:
    """Return odd numbers without a pattern, so that a change of any one element shows."""
    mixed = torch.arange(1, count + 1, dtype=torch.int64, device=device) * 0x1E3779B97F4A7C15
    mixed = (mixed ^ (mixed >> 29)) * 0x3F58476D1CE4E5B9
    return (mixed ^ (mixed >> 32)) | 1


class Agreement:
    """One round's all-gather of (round, digest, whether this replica takes part, norm)."""

    def __init__(
        self,
        number: int,
        digest: int,
        takes_part: bool,
        group: dist.ProcessGroup | None,
        norm: float | None = None,
    ) -> None:
        """Begin; collective. norm: of the entries this replica sends; None on all if not needed."""
        self._group = group
        told = [number, digest, int(takes_part)]
        if norm is not None:
            told.append(int(torch.tensor(norm, dtype=torch.float64).view(torch.int64)))
        mine = torch.tensor(told, dtype=torch.int64, device=meeting_place(group))
        self._all = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
        self._work = all_gather(self._all, mine, group=group, async_op=True)

    def participants(self) -> list[int]:
        """Wait; return which replicas take part, by their ranks in the group.

        Raise RuntimeError on every replica if they are not in the same round, or have different
        shared parameters.
        """
        rounds, digests, parts, *_ = self._told()
        ranks = ranks_of(self._group)
        if len(set(rounds)) > 1:
            who = _differing(rounds, ranks)
            raise RuntimeError(
                f"gtopk: replicas are in different rounds: {_by_rank(rounds, ranks, who)}. Load "
                "the checkpoint of the same step on all of them"
            )
        if len(set(digests)) > 1:
            who = _differing(digests, ranks)
            raise RuntimeError(
                f"gtopk: the shared parameters differ in round {rounds[0]}: those of "
                f"{_named(who)} differ from {_others(who, ranks)}. Load the checkpoint of the same "
                "step on all replicas"
            )
        return [place for place, takes_part in enumerate(parts) if takes_part]

    def median_norm(self) -> float:
        """Wait; return the median norm of the participants, if two are in the middle, the lower.

        Raise as participants(). Return 0 if no replica takes part.
        """
        participants = self.participants()
        norms = torch.tensor(self._told()[3], dtype=torch.int64).view(torch.float64)[participants]
        return float(norms.median()) if participants else 0.0

    def _told(self) -> list[tuple[int, ...]]:
        if self._work is not None:
            self._work.wait()
        return [*zip(*(each.tolist() for each in self._all), strict=True)]


def _differing(values: Sequence[int], ranks: Sequence[int]) -> list[int]:
    """Return the ranks whose value differs from the majority's; all if there is no majority."""
    value, count = Counter(values).most_common(1)[0]
    if 2 * count <= len(values):
        return list(ranks)
    return [rank for rank, each in zip(ranks, values, strict=True) if each != value]


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _others(who: Sequence[int], ranks: Sequence[int]) -> str:
    rest = [rank for rank in ranks if rank not in who]
    return f"those of {_named(rest)}" if rest else "each other"


def _by_rank(values: Sequence[int], ranks: Sequence[int], who: Sequence[int]) -> str:
    """Name the rounds of the ranks that differ, and the round of the others."""
    of = dict(zip(ranks, values, strict=True))
    rest = [rank for rank in ranks if rank not in who]
    shown = [*who, *rest[:1]]
    return ", ".join(f"rank {rank} in round {of[rank]}" for rank in shown)
