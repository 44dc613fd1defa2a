"""gtopk.SparseState: residuals and configuration of one model on one rank, keyed by parameter name.

It knows units and residuals; when gradients arrive and travel is overlap.py's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gtopk.checkpoint import check_place, check_units, layout, place
from gtopk.collectives import check_tensor, is_sharded
from gtopk.config import Config
from gtopk.overlap import Overlap
from gtopk.residuals import Residuals
from gtopk.units import Parameter, Unit, UnitSize, units_of

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

    NamedParameters = Iterable[tuple[str, torch.Tensor]]

_FORMAT = 1


class SparseState:
    """State of ``gtopk.sparse_hook``, to be made alike on every rank.

    ``ddp.register_comm_hook(SparseState(model.named_parameters()), gtopk.sparse_hook)``

    Gradients are exchanged in units, which follow from the parameters alone (units.py) and start
    as soon as their last gradient has arrived. Parameters of fewer than `min_numel` elements are
    averaged densely, one all-reduce per unit, and have no residual. Memory per rank: the residuals
    (the accumulation type of each large parameter: 4 bytes an element, 8 for float64) and one flat
    buffer per unit, into which each gradient is copied once and from which the result is copied
    back once.

    Args:
        named_parameters: ``model.named_parameters()`` of the model that DDP wraps; those that
            require a gradient count. Float32, float64, bfloat16 or float16, on the CPU.
        density: the share of each unit's elements that travels, in (0, 1].
        unit: bytes of consecutive parameters in reverse registration order; or "parameter"; or
            "model".
        algorithm: of ``gtopk.sparse_all_reduce``; so are `put_back`, `select` and `wire`.
        put_back: "own" or "merged".
        select: "exact".
        wire: None.
        warmup: pairs (density, steps), used one after the other before `density`. A step is one
            backward through the hook; those under ``no_sync()`` do not count.
        min_numel: see above.
        momentum: 0; others are not there yet, and so are the next three arguments.
        clip_norm: None.
        accumulate: "gradient".
        scaler: None.
        group: the process group that DDP was given; None is the default group.

    Raises:
        ValueError: an argument that makes no sense, and parameters sharded by FSDP.
        NotImplementedError: what the contract names and is not there yet.
    """

    def __init__(
        self,
        named_parameters: NamedParameters,
        density: float = 0.001,
        *,
        unit: UnitSize = 25 * 2**20,
        algorithm: str = "gtopk",
        put_back: str = "own",
        select: str = "exact",
        wire: str | None = None,
        warmup: Sequence[tuple[float, int]] = (),
        min_numel: int = 1024,
        momentum: float = 0.0,
        clip_norm: float | None = None,
        accumulate: str = "gradient",
        scaler: object | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        """See the class."""
        _check_not_there_yet(
            momentum=(momentum, 0.0),
            clip_norm=(clip_norm, None),
            accumulate=(accumulate, "gradient"),
            scaler=(scaler, None),
        )
        self.config = Config(
            density=density,
            unit=unit,
            algorithm=algorithm,
            select=select,
            put_back=put_back,
            wire=wire,
            warmup=warmup,  # type: ignore[arg-type]  # the Config makes tuples of them
            min_numel=min_numel,
        )
        self.step = 0
        """Backwards so far."""
        parameters = _checked(named_parameters)
        self.units: tuple[Unit, ...] = _units(parameters, self.config)
        self.group = group
        self._residuals = Residuals(self.units)
        self._overlap: Overlap | None = Overlap(self, parameters)

    @property
    def density(self) -> float:
        """Of the next backward."""
        return self.config.density_at(self.step)

    @property
    def overlap(self) -> Overlap:
        """Gradients under way. Raises RuntimeError after unpickling, until attach() is called."""
        if self._overlap is None:
            raise RuntimeError(
                "gtopk: this SparseState came out of a pickle and does not know its model: call "
                "state.attach(model.named_parameters()) first"
            )
        return self._overlap

    def attach(
        self, named_parameters: NamedParameters, group: dist.ProcessGroup | None = None
    ) -> None:
        """Give a state that was unpickled its model and process group again.

        Raises ValueError unless the parameters make the units that the state was saved with.
        """
        parameters = _checked(named_parameters)
        check_units(_units(parameters, self.config), layout(self.units), "the pickled state")
        self.group = group
        self._overlap = Overlap(self, parameters)

    def residual(self, name: str) -> torch.Tensor | None:
        """Return the parameter's residual as a view: its shape, the accumulation type.

        None for a small parameter, which has none. Not to be touched during a backward. Raises
        KeyError for a name that the state does not know.
        """
        return self._residuals.of_parameter(name)

    def unit_residual(self, index: int) -> torch.Tensor:
        """Return the flat residual of ``units[index]``, which the native part writes."""
        return self._residuals.of_unit(index)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of what a resumed run needs: this rank's alone, without communication.

        Residuals are training state: save every rank's own. Not to be called during a backward.
        """
        return {
            "format": _FORMAT,
            "config": self.config.as_dict(),
            "units": layout(self.units),
            "step": self.step,
            "place": place(self.group),
            "residuals": {
                name: view.clone() for name, view in self._residuals.by_parameter().items()
            },
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken, bit for bit: on the same rank of as many ranks.

        Raises ValueError where configuration, units or rank differ, and NotImplementedError where
        the number of ranks does; the state is then as it was.
        """
        if state_dict.get("format") != _FORMAT:
            raise ValueError(
                f"gtopk: the saved state has format {state_dict.get('format')!r}, not {_FORMAT}"
            )
        self.config.check_equal(state_dict["config"])
        check_units(self.units, state_dict["units"], "the saved state")
        check_place(state_dict["place"], place(self.group))
        self._residuals.load(state_dict["residuals"])
        self.step = state_dict["step"]

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what belongs to this process: the model, the group and gradients under way."""
        return {
            "config": self.config,
            "units": self.units,
            "step": self.step,
            "residuals": self._residuals.by_parameter(),
        }

    def __setstate__(self, pickled: dict[str, Any]) -> None:
        """See attach()."""
        self.config = pickled["config"]
        self.units = pickled["units"]
        self.step = pickled["step"]
        self.group = None
        self._residuals = Residuals(self.units)
        self._residuals.load(pickled["residuals"])
        self._overlap = None


def _checked(named_parameters: NamedParameters) -> dict[str, torch.Tensor]:
    """Return those that require a gradient, by name, in registration order."""
    found: dict[str, torch.Tensor] = {}
    for name, parameter in named_parameters:
        if not parameter.requires_grad:
            continue
        if is_sharded(parameter):
            raise ValueError(
                f"gtopk: parameter '{name}' is sharded by FSDP ({type(parameter).__name__}): its "
                "gradient is reduced in pieces that a selection cannot cover. Use "
                "DistributedDataParallel with gtopk.sparse_hook, or FSDP without gtopk"
            )
        check_tensor(parameter, f"parameter '{name}'")
        if name in found:
            raise ValueError(f"gtopk: two parameters have the name '{name}'")
        found[name] = parameter
    if not found:
        raise ValueError("gtopk: named_parameters holds no parameter that requires a gradient")
    return found


def _units(parameters: Mapping[str, torch.Tensor], config: Config) -> tuple[Unit, ...]:
    described = [Parameter(name, tuple(p.shape), p.dtype) for name, p in parameters.items()]
    return units_of(described, config.unit, config.min_numel)


def _check_not_there_yet(**arguments: tuple[object, object]) -> None:
    for name, (given, there) in arguments.items():
        if given != there:
            raise NotImplementedError(
                f"gtopk: SparseState({name}={given!r}) is not there yet; only {there!r} is"
            )
