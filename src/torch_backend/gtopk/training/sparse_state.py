"""gtopk.SparseState: residuals and configuration of one model on one rank, keyed by parameter name.

This module handles arguments and steps; kept.py holds the state between steps, and backward.py
decides when gradients are sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from typing_extensions import Unpack

from gtopk.diagnostics.diagnose import Diagnostics
from gtopk.exchange.backward import Backward
from gtopk.ops.options import SparseOptions, sends_all
from gtopk.state.adaptive import Layer, adapt
from gtopk.state.auto import Choice
from gtopk.state.config import Config, Density, Share, SparseArguments, shows
from gtopk.state.fingerprint import Line, description
from gtopk.state.kept import Kept
from gtopk.state.momenta import Momenta
from gtopk.state.rates import check_scaler, rates_of
from gtopk.state.reshard import Cut
from gtopk.state.saved import (
    IncompatibleKeys,
    check_accumulate,
    check_parameters,
    check_place,
    check_units,
    layout,
    place,
    read,
)
from gtopk.state.units import Parameter, Unit, order_of
from gtopk.training.ddp_backward import BucketSource
from gtopk.training.parameters import NamedParameters, as_real, pairs_of, trained_parameters


class SparseState:
    """State of ``gtopk.sparse_hook``; construct it with the same arguments on every rank.

    ``gtopk.attach(ddp, density=…)`` makes one for a DDP and registers the hook.

    Gradients are exchanged in units, which depend only on the parameters (units.py) and start as
    soon as their last gradient has arrived. Parameters of fewer than `min_numel` elements are
    averaged densely, one all-reduce per unit, and have no residual. Complex parameters of any size
    are treated likewise, as pairs of real numbers. Each rank needs memory for the residuals of
    large parameters, in the accumulation type: 4 bytes per element, 8 for float64, or none if
    error_decay=0. Large gradients are read and written in place, in DDP's buckets; small ones are
    packed. The first rank records what was delivered, k entries per unit, until the backward has
    ended.

    A unit whose gradients, small ones included, are not finite on some rank is not exchanged: its
    result is NaN everywhere and its residuals are unchanged; with `scaler` this applies to all
    units. Deliveries that reach no ``.grad`` go back into the first rank's residual: DDP drops the
    delivery for a parameter that no rank used (find_unused_parameters), and a backward that raises
    drops all deliveries and does not count as a step.

    Args:
        named_parameters: ``model.named_parameters()`` of the model that DDP wraps, or the model.
            The state covers the parameters that require a gradient, and tied ones once. They must
            be float32, float64, bfloat16 or float16, and all on the CPU or all on one CUDA device.
        density: the fraction of each unit's elements that is sent, in (0, 1], by default 0.001;
            algorithm="dense" sends all of them and takes no density. Or "adaptive" (LAGS-SGD, Shi
            et al., arXiv 1911.08727): each unit sends as much as is predicted to travel while the
            backward computes the next one, and units are merged if waiting for the next costs less
            than starting an exchange (OMGS-SGD). After two backwards, five are measured, during the
            warm-up if there is one; until the choice is made, backwards after the warm-up use the
            smallest density. The choice (see `layers`) is the same on all ranks, kept, and saved
            with the residuals; setting the density to "adaptive" chooses again.
        density_bounds: the smallest and the largest density that "adaptive" chooses.
        unit: bytes of consecutive parameters in reverse registration order; or "parameter"; or
            "model". By default 25 MiB; with algorithm="dense" an eighth of the model, but at least
            1 and at most 25 MiB.
        algorithm: ``gtopk.sparse_all_reduce`` explains it, and `semantics`, `put_back`, `select`,
            `block` and `wire`. "auto" chooses for each unit at the first backward of each density;
            its `choices` are kept and saved with the residuals.
        semantics: "dense", "exact_sum", "gtopk" or "any".
        put_back: "own" or "merged".
        select: "exact", "gaussian", "sampled", "threshold" or "block". The per-unit state of
            "threshold" is saved with the residuals.
        block: for select="block": elements per block, counted from the start of each unit.
        wire: None, "bf16", "fp16", "int8", "4bit", "2bit", "ternary", "sign" or "raw".
        error_decay: β in [0, 1]: after each step that happened, β times what it did not deliver
            stays in the residual. With 1, nothing is lost (error feedback, Seide et al.,
            Interspeech 2014). With 0, rounding errors and entries that were not selected are
            dropped, and no residual is kept; for a transformer with AdamW this ends at a lower loss
            on the wire "ternary", and made no measurable difference on others
            (docs/results/adamw.md). Values that skip() or an aborted backward returns to a residual
            are sent once more in either case.
        warmup: pairs (density, steps), which apply one after the other before `density`. A density
            of "dense" is the algorithm "dense": all of acc is sent, uncoded, and the residual is
            cleared. ("dense", steps, wire) codes it, and keeps the rounding error. A step is one
            backward through the hook; backwards under ``no_sync()`` do not count. The first
            backward warns, on the first rank, of densities that are predicted to cost more than
            "dense" (``gtopk.plan``).
        min_numel: parameters with fewer elements are averaged densely; see above.
        momentum: m in [0, 1): each rank accumulates its momentum u <- m u + g instead of its
            gradient g, and clears u where an entry was sent (DGC, Lin et al., arXiv 1712.01887:
            momentum correction and momentum factor masking). It replaces the optimizer's momentum,
            which you should set to 0. It takes two buffers, for small parameters too; for half
            types the accumulated value is rounded to the gradient's type.
        nesterov: accumulate g + m u instead of u.
        clip_norm: the norm c: before accumulation, each rank's gradient is scaled down to the norm
            c / sqrt(P), with P the number of ranks (DGC's local clipping). Residuals and deliveries
            may be larger. None means no clipping.
        clip: what the norm covers, including small parameters. "model" means all gradients, so
            units wait until the last has arrived, and no exchange overlaps the backward. "unit"
            means that each unit is clipped to c / sqrt(P) on its own and started as usual.
        accumulate: "gradient" or "update". With "update", each gradient is multiplied by the
            learning rate that its parameter has in `optimizer`, and results are divided by it.
            Residuals then hold steps that were not taken, and keep their size when the rate changes
            (as in the papers of LAGS-SGD and gTop-k). Rates must be above 0.
        optimizer: the source of the rates for accumulate="update". A DistributedOptimizer passes
            its own.
        scaler: the ``torch.amp.GradScaler`` that scales the loss. Gradients are then divided by its
            scale on arrival and results multiplied by it, so residuals are unscaled and unaffected
            when the scale changes. All units wait for each other: if the gradients of one are not
            finite, on any rank, no unit of that backward happens. It cannot be used with float16
            parameters, which a GradScaler does not accept.
        group: the process group that DDP was given; None is the default group.

    Raises:
        ValueError: an invalid argument, or parameters sharded by FSDP.
        NotImplementedError: parameters on several devices, or on a device other than CPU and CUDA;
            or a combination of arguments that is not implemented.
    """

    @shows(SparseArguments)
    def __init__(
        self,
        named_parameters: NamedParameters,
        density: Share | None = None,
        *,
        group: dist.ProcessGroup | None = None,
        **arguments: Unpack[SparseArguments],
    ) -> None:
        """See the class."""
        unknown = sorted(arguments.keys() - SparseArguments.__optional_keys__)
        if unknown:
            raise TypeError(
                f"SparseState.__init__() got an unexpected keyword argument '{unknown[0]}'"
            )
        self.config = Config.of(density, arguments)
        optimizer, scaler = arguments.get("optimizer"), arguments.get("scaler")
        self.step = 0
        """The number of backwards so far, except those that raised."""
        self.group = group
        self.shard: tuple[int, int] | None = None
        """(shard, number of shards) if this state is for one shard of the model; else None."""
        self.shard_groups: Sequence[dist.ProcessGroup] = ()  # groups with other shards' ranks
        self.cuts: Mapping[str, Cut] | None = None  # how shards are cut, if known
        self._backward: Backward | None
        parameters = list(pairs_of(named_parameters))
        units, self._backward = self._arrange(parameters)
        self.kept = Kept(self.config, units)
        self.rates = rates_of(self.config.accumulate, optimizer, self._rated(parameters))
        """For accumulate="update"; neither saved nor copied with the state."""
        check_scaler(scaler, units)
        self.scaler = scaler
        """The argument; neither saved nor copied with the state. Set it between two backwards."""
        self.diagnostics = Diagnostics()

    @property
    def units(self) -> tuple[Unit, ...]:
        """The units, each covered by one selection, in the order of their numbers."""
        return self.kept.units

    @property
    def layers(self) -> list[Layer]:
        """The choice of density="adaptive", one layer per unit; empty if no choice was made."""
        return self.kept.layers

    @property
    def momenta(self) -> Momenta:
        """Each unit's momentum, which each backward advances."""
        return self.kept.momenta

    @property
    def density(self) -> Density | Share:
        """The density of the next backward: in (0, 1], "adaptive", or "dense" for all elements.

        Set it to the same value on all ranks. The new value applies to all later backwards and ends
        the warm-up. Raises ValueError unless it is in (0, 1] or "adaptive".
        """
        return self.config.density_at(self.step)

    @density.setter
    def density(self, density: Share) -> None:
        self._settle()
        self.config = self.config.with_density(density)
        self._adopt([])

    @property
    def wire(self) -> str | None:
        """The wire of the next backward: the configured one, or a dense warm-up phase's."""
        return self.config.wire_at(self.step)

    def unit_density(self, index: int) -> Density:
        """Return the density of ``units[index]`` in the next backward."""
        density = self.density
        if density != "adaptive":
            return density
        return self.layers[index].density if self.layers else self.config.density_bounds[0]

    @property
    def backward(self) -> Backward:
        """The Backward that handles gradients; replaced if they do not come from DDP.

        Raises RuntimeError for a copy, until bind() is called.
        """
        if self._backward is None:
            raise RuntimeError(
                "gtopk: this SparseState was copied or unpickled, and does not know its model: "
                "call state.bind(model.named_parameters()) first"
            )
        return self._backward

    @backward.setter
    def backward(self, backward: Backward) -> None:
        self._backward = backward

    def bind(
        self,
        named_parameters: NamedParameters,
        group: dist.ProcessGroup | None = None,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        """Attach a copied or unpickled state to a model and a process group, or move it to others.

        Deliveries of an aborted backward go back to the first rank's residual. The arguments are
        the same as the constructor's. Raises ValueError unless the parameters form the units that
        the state was saved with.
        """
        self._settle()
        parameters = list(pairs_of(named_parameters))
        units, backward = self._arrange(parameters)
        check_units(units, layout(self.kept.unmerged), "the pickled state")
        self.kept.bind(units)
        self.rates = rates_of(self.config.accumulate, optimizer, self._rated(parameters))
        self.group = group
        self._backward = backward
        backward.rearrange(self.units)

    def skip(self) -> None:
        """Take back the delivery of the last backward, for a step that you skip.

        The delivery goes to the first rank's residual. Call it on every rank, after the backward
        and before the next one. The call is idempotent, and does nothing if nothing was delivered,
        for example because gradients were not finite. Small parameters have no residual, so their
        gradients are lost with the step.
        """
        self.backward.check_outside()
        self.backward.skip()

    def residual(self, name: str) -> torch.Tensor | None:
        """Return the residual as a view with the parameter's shape and memory order.

        It has the accumulation type. With error_decay=0 it is a view only until the next step.
        Small parameters have no residual; for them, return None. Do not access it during a
        backward. Raises KeyError for an unknown name.
        """
        return self.kept.residuals.of_parameter(name)

    def momentum(self, name: str) -> torch.Tensor | None:
        """Return the parameter's momentum as a view with its shape and the accumulation type.

        Without `momentum=`, return None. Do not access it during a backward. Raises KeyError for an
        unknown name.
        """
        return self.momenta.by_parameter()[name] if self.momenta else None

    def unit_residual(self, index: int) -> torch.Tensor:
        """Return the flat residual of ``units[index]``, which the native part writes."""
        return self.kept.residuals.of_unit(index)

    def unit_residual_is_zero(self, index: int) -> bool:
        """Return whether everything was delivered so far, so that the residual needs no memory."""
        return self.kept.residuals.is_zero(index)

    def unit_selector_state(self, index: int) -> torch.Tensor:
        """Return the selector's state of ``units[index]``, which the native part writes."""
        return self.kept.selector_states.of_unit(index)

    @property
    def choices(self) -> list[Choice]:
        """The choices of "auto" so far: (unit, density, algorithm, reason), equal on all ranks."""
        return self.kept.pinned.choices()

    def choose(self) -> None:
        """Choose densities and algorithms of the next backward, if due. Collective."""
        density = self.density
        if density == "adaptive" and not self.layers:
            ready, merges = self.backward.stopwatch.ready(), self.backward.source.merges
            if ready is not None:
                self._adopt(adapt(self.config, self.units, ready, self.group, merges=merges))
        if self.config.automatic and density != "dense":
            densities = [float(self.unit_density(i)) for i in range(len(self.units))]
            self.kept.pinned.choose(self.config, self.units, densities, self.group)

    def unit_options(self, index: int) -> SparseOptions:
        """Return how ``units[index]`` is exchanged in the next backward."""
        return self.config.options(self.unit_density(index), self.unit_algorithm(index), self.wire)

    def unit_algorithm(self, index: int) -> str:
        """Return the algorithm of ``units[index]`` in the next backward."""
        density = self.unit_density(index)
        if density == "dense":
            return self.config.algorithm if sends_all(self.config.algorithm) else density
        automatic = self.config.automatic
        return self.kept.pinned.algorithm(index, density) if automatic else self.config.algorithm

    def description(self) -> list[Line]:
        """Describe everything that must be the same on every rank."""
        return description(self.config, self.units, self.step, self.choices, self.layers)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the state that a resumed run needs on this rank. Local.

        Residuals are training state: save them on every rank, or all ranks' with gtopk.save.
        Raises RuntimeError during a backward.
        """
        self._settle()
        return self.kept.state_dict(self.config, self.step, self.place())

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True
    ) -> IncompatibleKeys:
        """Resume from `state_dict`, on the same rank of the same number of ranks.

        Residuals and step are loaded; the configuration is not. If it equals the saved
        configuration, the run continues bit for bit; density, warm-up, unit and algorithm may
        differ. The selector's state and the choices of "auto" and "adaptive" are loaded if units
        and the arguments on which they depend equal the saved ones; otherwise they start afresh.
        The momentum of a parameter for which none was saved starts afresh, too.

        Args:
            state_dict: a result of state_dict().
            strict: whether the parameters must match the saved ones in name, shape, type, and in
                being large or small. False loads the residuals whose name, shape and type match and
                leaves the others unchanged.

        Returns:
            ``(missing_keys, unexpected_keys)``: parameters whose residual was not loaded, and saved
            parameters that are unknown here. Both are empty with strict.

        Raises ValueError if it is not a saved state, or is the state of other parameters, another
        `accumulate`, another rank or another number of ranks (gtopk.load accepts the last two).
        After an error the state is unchanged.
        """
        saved = read(state_dict)
        if strict:
            check_parameters(self.units, saved.units)
        check_place(saved.place, self.place())
        check_accumulate(saved.accumulate, self.config)
        self._settle()
        self._adopt(saved.layers_for(self.config))
        incompatible = self.kept.load(saved, self.config, strict=strict)
        self.step = saved.step
        return incompatible

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what belongs to this process: the model, the group, gradients in flight."""
        self._settle()
        return {
            "config": self.config,
            "step": self.step,
            "place": self.place(),
            **self.kept.copied(),
        }

    def __setstate__(self, pickled: dict[str, Any]) -> None:
        """See bind()."""
        self.config = pickled["config"]
        self.step = pickled["step"]
        self.group = None
        self.shard, self.shard_groups, self.cuts = None, (), None
        self._copied_place = pickled.get("place")  # needed for a copy's state_dict()
        self.scaler = self.rates = None
        self.kept = Kept.of_copy(self.config, pickled)
        self.diagnostics = Diagnostics()
        self._backward = None

    def place(self) -> dict[str, int] | None:
        """Return the rank and the number of ranks, as saved; None without a process group."""
        return self._copied_place if self._backward is None else place(self.group, self.shard)

    def _arrange(self, named_parameters: NamedParameters) -> tuple[tuple[Unit, ...], Backward]:
        """Make units of the parameters, and the Backward that receives their gradients."""
        parameters = trained_parameters(named_parameters)
        described = [
            Parameter(
                name,
                tuple(real.shape),
                real.dtype,
                real.device,
                order_of(real.shape, real.stride()),
                dense=parameter.is_complex(),
            )
            for name, parameter in parameters.items()
            for real in (as_real(parameter.detach()),)
        ]
        self.config.check_parameters(described)
        units = self.config.units_of(described)
        return units, BucketSource(self, units, parameters).backward

    def _rated(self, named_parameters: NamedParameters) -> Mapping[str, torch.Tensor]:
        """Return the parameters that the optimizer has, by their names in the units."""
        return trained_parameters(named_parameters)

    def _adopt(self, layers: Sequence[Layer]) -> None:
        """Continue with these layers; without layers, with the original units."""
        if self.kept.adopt(layers) and self._backward is not None:
            self._backward.rearrange(self.units)

    def _settle(self) -> None:
        if self._backward is not None:
            self._backward.check_outside()
            self._backward.settle()
