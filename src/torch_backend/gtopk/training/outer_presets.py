"""The presets of gtopk.OuterOptimizer: settings of one rule. Uses no tensors and no ranks.

docs/outer.md has the rule, and the source of each number.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast

from gtopk.ops.options import (
    SparseOptions,
    check_density,
    check_momentum,
    check_whole,
    codes_dense,
    selecting_algorithms,
    wires,
)
from gtopk.training.outer_fragments import smallest_gap

if TYPE_CHECKING:
    from collections.abc import Mapping

# Elements of a tile of 64 x 64, and of a block without tiles.
TILE = 4096


class Overrides(TypedDict, total=False):
    """Options that replace the preset's own."""

    inner_steps: int
    """H: inner steps per round."""
    lr: float
    """The outer learning rate, applied once."""
    momentum: float
    """Momentum of the outer update; 0 keeps none."""
    nesterov: bool
    """Whether that momentum is Nesterov's."""
    decay: float
    """Weight decay of the shared parameters, times lr, in each round."""
    error_decay: float
    """The share of its error that a replica keeps for the next round; 0 keeps none."""
    scale: float
    """Factor on a replica's movement, before the error is added."""
    subtract: float
    """The share of what was sent that is subtracted from the error."""
    transform: Literal["tiles", "dct"] | None
    """"tiles": selects in tiles of up to 64 x 64 of each matrix instead of blocks of 4,096; "dct":
    selects coefficients of the tiles' cosine transform."""
    k: int
    """Entries that a replica selects in each tile or block."""
    density: float
    """The same as a fraction."""
    algorithm: str
    """How selections are summed: "topk", "exact", or one that re-selects; see sparse_all_reduce."""
    wire: str | None
    """How values are rounded on the wire; see sparse_all_reduce."""
    mean: Literal["participants", "contributors"]
    """What divides a coordinate's sum: the number of all replicas, or of those that selected it."""
    clip: Literal["median"] | None
    """"median": what a replica sends is scaled down to the median of all replicas' norms."""
    sign: bool
    """Whether only the sign of the mean moves the shared parameters."""
    fragments: int
    """The number of parts of the model that are exchanged in turn, each once per round."""
    delay: int
    """Inner steps between an exchange's start and its use, which overlap with it."""
    mix: float
    """The share of a replica's own parameters that it keeps when it takes over the shared ones."""
    quorum: int
    """The smallest number of participants with which a round is not skipped."""
    grace: float
    """Seconds that a round waits for replicas that are late, over a ReplicaGroup."""


@dataclass(frozen=True)
class Settings:
    """A preset with its overrides; see Overrides. If k and density are None, all is sent."""

    preset: str
    inner_steps: int
    lr: float = 1.0
    momentum: float = 0.0
    nesterov: bool = False
    decay: float = 0.0
    error_decay: float = 0.0
    scale: float = 1.0
    subtract: float = 1.0
    transform: str | None = None
    k: int | None = None
    density: float | None = None
    algorithm: str = "topk"
    wire: str | None = None
    mean: str = "participants"
    clip: str | None = None
    sign: bool = False
    fragments: int = 1
    delay: int = 0
    mix: float = 0.0
    quorum: int = 1
    grace: float | None = None

    @property
    def selects(self) -> bool:
        """Whether a replica sends only some of its entries."""
        return self.k is not None or self.density is not None or self.selects_visible

    @property
    def selects_visible(self) -> bool:
        """Whether it sends all entries that would change a parameter in bfloat16."""
        return self.preset == "pulseloco"

    @property
    def keeps_error(self) -> bool:
        """Whether a replica keeps entries that it has not sent."""
        return self.error_decay > 0

    @property
    def takes_gradients(self) -> bool:
        """Whether gradients are exchanged in each step instead of movements."""
        return self.preset == "demo"

    @property
    def averages_parameters(self) -> bool:
        """Whether replicas exchange their parameters instead of their movements."""
        return self.preset == "localsgd"

    def share_of(self, block: int) -> float:
        """Return the density that selects k entries of a block of this many elements."""
        if self.density is not None:
            return self.density
        assert self.k is not None
        return min(1.0, self.k / block)

    def as_lines(self) -> list[tuple[str, str]]:
        """Describe what must be the same on every replica."""
        return [(f"{name} is", repr(value)) for name, value in dataclasses.asdict(self).items()]


PRESETS: dict[str, Overrides] = {
    "localsgd": {"inner_steps": 30},
    "diloco": {
        "inner_steps": 500,
        "lr": 0.7,
        "momentum": 0.9,
        "nesterov": True,
    },
    "streaming-diloco": {
        "inner_steps": 30,
        "lr": 0.4,
        "momentum": 0.9,
        "nesterov": True,
        "error_decay": 1.0,
        "wire": "4bit",
        "fragments": 3,
        "delay": 1,
        "mix": 0.5,
    },
    "demo": {
        "inner_steps": 1,
        "error_decay": 0.999,
        "transform": "dct",
        "k": 32,
        "wire": "bf16",
        "mean": "contributors",
        "sign": True,
    },
    "pulseloco": {
        "inner_steps": 8,
        "lr": 0.7,
        "momentum": 0.9,
        "nesterov": True,
        "error_decay": 1.0,
    },
    "sparseloco": {
        "inner_steps": 30,
        "error_decay": 0.95,
        "transform": "tiles",
        "k": 64,
        "wire": "2bit",
        "mean": "contributors",
    },
}


def settings_of(preset: str, overrides: Overrides) -> Settings:
    """Return a preset's settings with the overrides applied.

    Raise TypeError for an unknown override, ValueError for one that is invalid or would have no
    effect, and NotImplementedError for one that is not implemented.
    """
    if preset not in PRESETS:
        raise ValueError(f"gtopk: preset={preset!r} is unknown; available: {_names(PRESETS)}")
    given = cast("dict[str, Any]", dict(overrides))
    unknown = given.keys() - Overrides.__annotations__.keys()
    if unknown:
        raise TypeError(
            f"gtopk: OuterOptimizer got an unexpected argument {min(unknown)!r}; available: "
            f"{_names(Overrides.__annotations__)}"
        )
    _refuse_what_is_not_there(given)
    _refuse_what_is_fixed(preset, given)
    _check_name(given, "wire", (None, *(each for each in wires() if each != "lossless")))
    values = _merged(preset, given)
    _check_values(values)
    settings = Settings(preset, **values)
    _check_selection(settings, given)
    _check_what_acts(settings, given)
    _check_turns(settings)
    return settings


def _names(names: Mapping[str, Any]) -> str:
    return ", ".join(repr(name) for name in names)


def _refuse_what_is_not_there(given: dict[str, Any]) -> None:
    if given.get("wire") == "statistical-2bit":
        raise NotImplementedError(
            "gtopk: wire='statistical-2bit' is not implemented: wire='2bit' loses less"
        )


def _refuse_what_is_fixed(preset: str, given: dict[str, Any]) -> None:
    """Raise ValueError for overrides that the preset cannot take."""
    selection = {"k", "density", "transform", "algorithm", "wire"}
    fixed, why = {
        "localsgd": (
            given.keys() - {"inner_steps"},
            "averages parameters, and takes inner_steps only; preset='diloco' with lr=1 and "
            "momentum=0 exchanges movements, and takes everything else",
        ),
        "pulseloco": (
            given.keys() & selection,
            "sends what is visible in bfloat16, as it is",
        ),
        "demo": (
            given.keys()
            - selection
            - {"error_decay", "subtract", "mean", "clip", "sign", "quorum", "grace"},
            "exchanges gradients in each step, and takes learning rate and weight decay from the "
            "inner optimizer",
        ),
    }.get(preset, (set(), ""))
    if fixed:
        raise ValueError(f"gtopk: preset={preset!r} takes no {min(fixed)!r}: it {why}")


def _merged(preset: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the preset's values with the overrides, without values that they disable."""
    values = cast("dict[str, Any]", {**PRESETS[preset], **given})
    if "density" in given and "k" not in given:
        values.pop("k", None)
    # A preset's form of momentum applies only with a momentum.
    if not values.get("momentum") and "nesterov" not in given:
        values["nesterov"] = False
    some = values.get("k") is not None or values.get("density") is not None
    selects = some or preset == "pulseloco"
    if not selects and "transform" not in given:
        values.pop("transform", None)
    if not selects and "mean" not in given:
        values.pop("mean", None)
    if not selects and not codes_dense(values.get("wire")) and "error_decay" not in given:
        values.pop("error_decay", None)
    return values


def _check_values(values: dict[str, Any]) -> None:
    """Check each value by itself; convert NumPy's numbers to Python's."""
    values["inner_steps"] = check_whole(values["inner_steps"], "inner_steps", 1)
    for name in ("lr", "scale", "subtract"):
        if name in values:
            values[name] = _number(values[name], name, above=True)
    for name in ("decay", "error_decay", "grace"):
        if name in values:
            values[name] = _number(values[name], name)
    if values.get("error_decay", 0) > 1:
        raise ValueError(
            f"gtopk: error_decay must be at most 1, given {values['error_decay']!r}: errors would "
            "grow from round to round"
        )
    for name, least in (("fragments", 1), ("delay", 0), ("quorum", 1)):
        if name in values:
            values[name] = check_whole(values[name], name, least)
    if "mix" in values:
        values["mix"] = _number(values["mix"], "mix")
        if values["mix"] >= 1:
            raise ValueError(
                f"gtopk: mix must be below 1, given {values['mix']!r}: replicas would never take "
                "anything over"
            )
    values["momentum"] = check_momentum(values.get("momentum", 0.0))
    _check_name(values, "transform", (None, "tiles", "dct"))
    _check_name(values, "mean", ("participants", "contributors"))
    _check_name(values, "clip", (None, "median"))
    for name in ("nesterov", "sign"):
        if not isinstance(values.get(name, False), bool):
            raise ValueError(f"gtopk: {name} must be True or False, given {values[name]!r}")


def _check_selection(settings: Settings, given: dict[str, Any]) -> None:
    """Raise ValueError for a selection that cannot be made, or that no algorithm sums."""
    if settings.k is not None and settings.density is not None:
        raise ValueError(
            f"gtopk: give k= or density=, not both, given k={settings.k} and "
            f"density={settings.density}"
        )
    if settings.k is not None and check_whole(settings.k, "k", 1) > TILE:
        raise ValueError(f"gtopk: k must be at most {TILE}, the size of a tile, given {settings.k}")
    if settings.density is not None:
        check_density(settings.density)
    if not settings.selects:
        if "algorithm" in given and settings.algorithm != "dense":
            raise ValueError(
                f"gtopk: algorithm={settings.algorithm!r} needs k= or density=: without a "
                "selection everything is sent, by 'dense'"
            )
        return
    if settings.selects_visible:
        return
    sums = selecting_algorithms()
    if settings.algorithm not in sums:
        raise ValueError(
            f"gtopk: algorithm={settings.algorithm!r} does not sum selections; available: "
            f"{', '.join(repr(each) for each in sums)}"
        )
    share = settings.share_of(TILE)
    # Its error says which wires the algorithm takes.
    options = SparseOptions(None, share, settings.algorithm, "block", TILE, wire=settings.wire)
    if settings.mean == "contributors" and not options.traits.whole_sums:
        raise ValueError(
            f"gtopk: mean='contributors' needs algorithm='topk' or 'exact', given "
            f"{settings.algorithm!r}, which delivers parts of sums whose contributors are unknown"
        )
    if settings.clip and not options.traits.delivers_selections:
        raise ValueError(
            f"gtopk: clip={settings.clip!r} needs algorithm='topk', given {settings.algorithm!r}: "
            "what is not delivered would return to the error scaled down"
        )


def _check_what_acts(settings: Settings, given: dict[str, Any]) -> None:
    """Raise ValueError for an argument that would have no effect."""
    if settings.nesterov and not settings.momentum:
        raise ValueError("gtopk: nesterov=True needs a momentum above 0")
    rounds = codes_dense(settings.wire)
    if settings.keeps_error and not settings.selects and not rounds:
        raise ValueError(
            f"gtopk: error_decay={settings.error_decay} needs a selection (k= or density=) or a "
            "wire that rounds: without them a replica sends everything, and has no error"
        )
    for name, without in (("transform", None), ("mean", "participants"), ("clip", None)):
        if getattr(settings, name) != without and not settings.selects:
            raise ValueError(
                f"gtopk: {name}={getattr(settings, name)!r} needs a selection: k= or density="
            )
    if settings.subtract != 1 and not (settings.selects and settings.keeps_error):
        raise ValueError(
            f"gtopk: subtract={settings.subtract} needs a selection (k= or density=) and an error "
            "to be subtracted from (error_decay above 0)"
        )


def _check_turns(settings: Settings) -> None:
    """Raise ValueError for fragments without a turn, and for exchanges that would overlap."""
    if settings.fragments > settings.inner_steps:
        raise ValueError(
            f"gtopk: fragments={settings.fragments} needs as many inner_steps in a round, given "
            f"{settings.inner_steps}"
        )
    gap = smallest_gap(settings.inner_steps, settings.fragments)
    if settings.delay >= gap:
        raise ValueError(
            f"gtopk: delay={settings.delay} must be below {gap}, the fewest steps between two "
            f"turns of {settings.fragments} fragments in {settings.inner_steps} inner_steps: an "
            "exchange must end before the next one begins"
        )


def _number(value: object, name: str, *, above: bool = False) -> float:
    """Return it as a float; raise ValueError unless it is finite and >= 0 (> 0 with `above`)."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    number = float(value) if is_number else math.nan  # type: ignore[arg-type]
    if not math.isfinite(number) or number < 0 or (above and number == 0):
        least = "above 0" if above else "of 0 or more"
        raise ValueError(f"gtopk: {name} must be a finite number {least}, given {value!r}")
    return number


def _check_name(values: dict[str, Any], name: str, there: tuple[str | None, ...]) -> None:
    if values.get(name, there[0]) not in there:
        raise ValueError(
            f"gtopk: {name}={values[name]!r} is unknown; available: "
            f"{', '.join(repr(each) for each in there)}"
        )
