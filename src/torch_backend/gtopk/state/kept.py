"""What a SparseState keeps for its units from one backward to the next. Uses no exchange.

These are residuals, momenta and selectors' states, and the choices of "auto" and "adaptive". When
"adaptive" merges units, all of it moves with the parameters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gtopk.state.adaptive import units_of_layers
from gtopk.state.auto import Pinned
from gtopk.state.momenta import Momenta
from gtopk.state.residuals import Residuals, SelectorStates
from gtopk.state.saved import FORMAT, asked_of, layout

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gtopk.state.adaptive import Layer
    from gtopk.state.config import Config
    from gtopk.state.saved import IncompatibleKeys, Saved
    from gtopk.state.units import Unit


class Kept:
    """The state of these units, or of the units that layers merge them into."""

    def __init__(self, config: Config, units: tuple[Unit, ...]) -> None:
        """Start with zeros and no choices; allocate nothing yet."""
        self.unmerged = units
        self.layers: list[Layer] = []
        self._momentum, self._nesterov = config.momentum, config.nesterov
        self._begin(units)

    def _begin(self, units: tuple[Unit, ...]) -> None:
        self.units = units
        self.residuals = Residuals(units)
        self.momenta = Momenta(units, self._momentum, nesterov=self._nesterov)
        self.selector_states = SelectorStates(len(units))
        self.pinned = Pinned()

    def bind(self, units: tuple[Unit, ...]) -> None:
        """Continue with the same units of a model whose memory may be in another order."""
        self.unmerged = units
        self.adopt(self.layers)

    def adopt(self, layers: Sequence[Layer]) -> bool:
        """Continue with these layers and their units; without layers, with the original units.

        Return whether the units have changed. If so, selectors start afresh, and "auto" chooses
        again.
        """
        units = units_of_layers(self.unmerged, layers) if layers else self.unmerged
        if units is None:  # the layers were made from other units
            units, layers = self.unmerged, []
        self.layers = list(layers)
        if units == self.units:
            return False
        residuals, momenta = self.residuals, self.momenta
        self._begin(units)
        if not residuals.all_zero:
            self.residuals.load(residuals.by_parameter(), strict=True)
        self.momenta.load(momenta.by_parameter())
        return True

    def load(self, saved: Saved, config: Config, *, strict: bool) -> IncompatibleKeys:
        """Copy what fits these units and this configuration. Call it after adopt()."""
        incompatible = self.residuals.load(saved.residuals, strict=strict)
        self.selector_states.load(saved.selector_states_for(config, self.units))
        self.pinned = Pinned(saved.choices_for(config, self.units))
        self.momenta.load(saved.momenta)
        return incompatible

    def state_dict(
        self, config: Config, step: int, place: Mapping[str, int] | None
    ) -> dict[str, Any]:
        """Return a copy of everything as plain values, which saved.read() reads.

        The configuration in it is for information only.
        """
        residuals, momenta = self.residuals.by_parameter(), self.momenta.by_parameter()
        choices = [list(each) for each in self.pinned.choices()]
        return {
            "format": FORMAT,
            "config": config.as_dict(),
            "units": layout(self.units),
            "step": step,
            "place": place,
            "residuals": {name: view.clone() for name, view in residuals.items()},
            "selector": {"select": config.select, "states": self.selector_states.copies()},
            "auto": {"asked": asked_of(config), "choices": choices},
            "momenta": {name: view.clone() for name, view in momenta.items()},
            "adaptive": {
                "bounds": list(config.density_bounds),
                "layers": [[list(each.names), *each[1:]] for each in self.layers],
            },
        }

    def copied(self) -> dict[str, Any]:
        """Return a copy of everything, to be pickled."""
        # Copy the tensors, because each view would be pickled with its whole unit.
        residuals, momenta = self.residuals.by_parameter(), self.momenta.by_parameter()
        return {
            "units": self.units,
            "residuals": {name: each.clone() for name, each in residuals.items()},
            "selector_states": self.selector_states.copies(),
            "choices": self.pinned.choices(),
            "unmerged": self.unmerged,
            "layers": self.layers,
            "momenta": {name: each.clone() for name, each in momenta.items()},
        }

    @classmethod
    def of_copy(cls, config: Config, copied: Mapping[str, Any]) -> Kept:
        """Make a Kept from the result of copied()."""
        kept = cls(config, copied["unmerged"])
        kept._begin(copied["units"])
        kept.layers = copied["layers"]
        kept.residuals.load(copied["residuals"], strict=True)
        kept.selector_states.load(copied["selector_states"])
        kept.pinned = Pinned(copied["choices"])
        kept.momenta.load(copied["momenta"])
        return kept
