"""Checks that all ranks' states are equal: first by a hash and then, for the error, by text."""

from __future__ import annotations

import hashlib
import itertools
import json
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from gtopk.core.groups import all_gather, meeting_place, ranks_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gtopk.state.adaptive import Layer
    from gtopk.state.auto import Choice
    from gtopk.state.config import Config
    from gtopk.state.units import Parameter, Unit

# One line of a state's description, such as ("density is", "0.01").
Line = tuple[str, str]


def description(
    config: Config,
    units: Sequence[Unit],
    step: int,
    choices: Iterable[Choice],
    layers: Iterable[Layer],
) -> list[Line]:
    """Describe everything that must be the same on every rank."""
    lines = [(f"{name} is", repr(value)) for name, value in config.as_dict().items()]
    lines.append(("step is", str(step)))
    for i, unit in enumerate(units):
        for covered, parameters in (("selected", unit.large), ("averaged", unit.small)):
            lines.extend((f"unit {i} holds", f"{_said(each)} {covered}") for each in parameters)
    lines.extend(
        (f"the algorithm of unit {each.unit} at density={each.density} is", repr(each.algorithm))
        for each in choices
    )
    lines.extend(
        (f"the adaptive density of unit {i} is", repr(each.density))
        for i, each in enumerate(layers)
    )
    return lines


def _said(parameter: Parameter) -> str:
    order = parameter.order
    memory = "" if order is None else f" with dimensions {list(order)} in memory"
    return f"'{parameter.name}' {list(parameter.shape)} {parameter.dtype}{memory}"


_STATES = (
    "the ranks' SparseStates are not alike",
    "Make models and states in the same way on every rank, and load the checkpoint of the same "
    "step",
)


def check_alike(
    lines: Sequence[Line], group: dist.ProcessGroup | None, said: tuple[str, str] = _STATES
) -> None:
    """Raise ValueError on every rank unless all of them pass the same lines. Collective.

    said: what the error says is wrong, and what to do.

    The error names the first difference between this rank and the lowest rank that differs from it.
    """
    text = json.dumps(lines).encode()
    mine = _tensor(hashlib.sha256(text).digest())
    hashes = _gathered(mine, group)
    other = next((i for i, each in enumerate(hashes) if not torch.equal(each, mine)), None)
    if other is None:
        return
    theirs = [tuple(line) for line in json.loads(gathered_texts(text, group)[other])]
    rank = ranks_of(group)[other]
    raise ValueError(
        f"gtopk: {said[0]}: {first_difference(lines, theirs, f'rank {rank}')}. {said[1]}"
    )


def check_nobody_failed(failure: Exception | None, group: dist.ProcessGroup | None) -> None:
    """If a rank has failed, raise its error there, and elsewhere one that names it. Collective."""
    mine = "" if failure is None else str(failure) or type(failure).__name__
    texts = gathered_texts(mine.encode(), group)
    if failure is not None:
        raise failure
    failed = next((i for i, text in enumerate(texts) if text.strip()), None)
    if failed is not None:
        rank = ranks_of(group)[failed]
        text = texts[failed].decode(errors="replace").strip().removeprefix("gtopk: ")
        raise RuntimeError(f"gtopk: rank {rank} failed: {text}")


def first_difference(mine: Sequence[Line], theirs: Sequence[Line], whose: str) -> str:
    """Name the first line that differs, with each side's version."""
    pairs = itertools.zip_longest(mine, theirs, fillvalue=("nothing", "more"))
    (what, value), (other_what, other_value) = next(pair for pair in pairs if pair[0] != pair[1])
    if what == other_what:
        return f"{what} {value} here and {other_value} on {whose}"
    return f"{what} {value} here and {other_what} {other_value} on {whose}"


def gathered_texts(mine: bytes, group: dist.ProcessGroup | None) -> list[bytes]:
    """Return every rank's text, padded with spaces."""
    length = torch.tensor([len(mine)], device="cpu")
    lengths = [int(each) for each in _gathered(length, group)]
    parts = _gathered(_tensor(mine.ljust(max(1, *lengths))), group)
    return [bytes(each.tolist()) for each in parts]


def _tensor(text: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def _gathered(mine: torch.Tensor, group: dist.ProcessGroup | None) -> list[torch.Tensor]:
    """Return every rank's tensor, in the order of the group's ranks."""
    mine = mine.to(meeting_place(group))
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    all_gather(parts, mine, group=group)
    return [each.cpu() for each in parts]
