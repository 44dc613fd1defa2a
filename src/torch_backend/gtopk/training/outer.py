"""gtopk.OuterOptimizer: replicas train alone and exchange their movements every H steps."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from gtopk.core.groups import backend_of, has_ranks_that_change
from gtopk.core.torch_internals import default_group
from gtopk.core.tracing import uncompiled, untraced
from gtopk.state.fingerprint import check_alike
from gtopk.training import outer_saved
from gtopk.training.outer_buffers import Buffers
from gtopk.training.outer_fragments import fragments_of
from gtopk.training.outer_members import ALIKE, Members
from gtopk.training.outer_presets import Overrides, settings_of
from gtopk.training.outer_rounds import OuterStatistics, Rounds
from gtopk.training.outer_shards import Replica, described, like, reshard
from gtopk.training.parameters import local_of, trained_parameters

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from typing_extensions import Unpack

    from gtopk.state.fingerprint import Line


class OuterOptimizer(torch.optim.Optimizer):
    """An optimizer of one replica that synchronises its parameters with the others every H steps.

    ``outer = gtopk.OuterOptimizer(AdamW(model.parameters()), model, preset="sparseloco")``

    Each replica trains its own copy of the model, with its own optimizer, on its own data. After
    every H-th step(), replicas exchange how far they have moved from the shared parameters, move
    the shared parameters by the mean, and continue from there (DiLoCo and its relatives;
    docs/outer.md has the rule and what each preset sends). Shared parameters are bitwise equal on
    all replicas; a digest of them is compared in each round. A replica whose movement is not finite
    does not take part in the round and continues from the shared parameters.

    Collective: construct it with the same arguments on every replica. Settings are compared, then
    rank 0's parameters and buffers are broadcast. Every replica must call step() equally often.

    Over a ReplicaGroup, constructing it sends nothing. The first step() does not train: the replica
    takes over the state of the replicas that are training, and joins them. Replicas may leave and
    return between exchanges; the next step() repeats an exchange that failed (docs/outer.md).

    Everything else, including param_groups, state and defaults, comes from the inner optimizer:
    learning rate schedulers, gradient accumulation and closures work as they do with it. A step
    that a GradScaler skips counts, because scalers of different replicas skip different steps.

    Args:
        inner: the optimizer to wrap, of parameters of `model`. Parameters that do not require a
            gradient, or that it does not have, are not exchanged.
        model: the module, which may be compiled. Its floating-point buffers are averaged in each
            round; other buffers are copied from the first replica.
        preset: "localsgd" (parameters are averaged), "diloco" (all movements, outer Nesterov
            momentum), "streaming-diloco" (the same in 4 bits, one fragment of the model at a time,
            while training continues), "sparseloco" (the largest movements in each tile, in 2 bits,
            with error feedback), "pulseloco" (the movements that are visible in bfloat16) or "demo"
            (gradients in each step: the largest coefficients of each tile's cosine transform; from
            the inner optimizer it takes only the learning rate and the weight decay).
        group: a process group of backend gtopk, with a rank for each replica, or a ReplicaGroup;
            None is the default group. If FSDP2 shards parameters over the ranks of a replica, pass
            the group of ranks that hold the same shards, such as ``mesh["replicate"].get_group()``,
            or a ReplicaGroup of them.
        state_device: the device of the outer state and of the data that is exchanged; None means
            the parameters' device. "cpu" saves GPU memory.
        overrides: values that replace the preset's; see ``Overrides`` in
            gtopk.training.outer_presets: inner_steps, lr, momentum, nesterov, decay, error_decay,
            scale, subtract, transform, k, density, algorithm, wire, mean, clip, sign, fragments,
            delay, mix, quorum, grace.

    Raises:
        ValueError: an argument is invalid or would have no effect; `inner` has parameters that are
            not in `model`; the group has ranks that hold other shards, or over which FSDP already
            replicates; the replicas' settings or parameters differ.
        NotImplementedError: an option or combination that is not implemented.
        TypeError: an unknown override.
    """

    # With True, a scaler calls step() even for a step that it skips; such a step counts too.
    _step_supports_amp_scaling = True

    def __init__(
        self,
        inner: torch.optim.Optimizer,
        model: nn.Module,
        preset: str = "diloco",
        group: dist.ProcessGroup | None = None,
        *,
        state_device: torch.device | str | None = None,
        **overrides: Unpack[Overrides],
    ) -> None:
        """See the class."""
        self._settings = settings_of(preset, overrides)
        self._inner = inner
        self._group = group
        self._model = module = _module(model, group)
        reshard(module)
        self._parameters = parameters = _exchanged(inner, module)
        # A rank need not have a part of each parameter.
        owned = {name for name, each in parameters.items() if local_of(each.detach()).numel()}
        fragments = [
            {name: parameters[name] for name in names if name in owned}
            for names in fragments_of(parameters, self._settings.fragments)
        ]
        self._replica = Replica(module, group)
        lines = self._settings.as_lines()
        lines += [(f"'{name}' has", described(each)) for name, each in parameters.items()]
        members = None
        if has_ranks_that_change(group):
            self._replica.compare(self._settings.as_lines(), parameters)
            others = _others(module, parameters)
            members = Members(group, self._replica, lines, others, self._settings)
        else:
            self._make_alike(lines)
        groups = {
            id(each): i for i, some in enumerate(inner.param_groups) for each in some["params"]
        }
        self._rounds = Rounds(
            fragments,
            {name: groups[id(each)] for name, each in parameters.items()},
            inner,
            Buffers(module, group),
            self._replica,
            self._settings,
            group,
            None if state_device is None else torch.device(state_device),
            members,
        )
        self._made = time.monotonic()

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The inner optimizer's parameter groups."""
        return self._inner.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The inner optimizer's state."""
        return self._inner.state

    @property
    def group(self) -> dist.ProcessGroup | None:
        """The group with a rank for each replica; None is the default group."""
        return self._group

    @property
    def replica(self) -> Replica:
        """The ranks that hold this replica's shards; without shards, only this rank."""
        return self._replica

    @property
    def model(self) -> nn.Module:
        """The plain module whose parameters are exchanged."""
        return self._model

    @property
    def steps(self) -> int:
        """The number of calls of step(), including calls in earlier runs that were resumed."""
        return self._rounds.step

    @property
    def pending(self) -> bool:
        """Whether an exchange has begun and its result has not been used yet."""
        return self._rounds.pending is not None

    @property
    def has_met(self) -> bool:
        """Whether all members of the group are known to have the same shared parameters now.

        It is False over a ReplicaGroup before the first exchange after a configure(), after a
        failed exchange, and if this replica was late for the last one.
        """
        members = self._rounds.members
        return members is None or (members.joined and not members.have_changed())

    @property
    def exchanges_next(self) -> bool:
        """Whether the next step() begins or ends an exchange: the time to configure a ReplicaGroup.

        Over a ReplicaGroup it is always true before the first step and after an exchange that
        failed.
        """
        return self._rounds.exchanges_next()

    def __getattr__(self, name: str) -> Any:
        """Look the name up in the inner optimizer."""
        if name == "_inner":  # a copy has no _inner
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __repr__(self) -> str:
        """Name the preset and the inner optimizer."""
        return f"OuterOptimizer({self._inner!r}, preset={self._settings.preset!r})"

    def __reduce__(self) -> Any:
        """Raise an error: a copy would belong to no group."""
        raise TypeError("gtopk: an OuterOptimizer cannot be copied: save its state_dict()")

    @untraced
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step the inner optimizer, and run the exchange that is then due, if any (collective).

        Raises RuntimeError on all replicas if their shared parameters differ, or they are in
        different rounds, and torch.distributed.DistBackendError as sparse_all_reduce does. The
        shared parameters are then unchanged.
        """
        if self._makes_state():
            return self._inner.step(closure)
        if not self._rounds.joined:
            self._rounds.join()
            return None
        if self._settings.takes_gradients:
            return self._exchange_gradients(closure)
        result = self._inner_step(closure)
        self._rounds.after_step()
        return result

    @untraced
    def zero_grad(self, set_to_none: bool = True) -> None:
        """See torch."""
        self._inner.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raise an error, because the initial parameters determine what is exchanged."""
        raise ValueError(
            "gtopk: an OuterOptimizer takes no new parameters: add the group to the inner "
            "optimizer, then make another OuterOptimizer with that optimizer"
        )

    def shared_parameters(self) -> dict[str, torch.Tensor]:
        """Return a copy of the shared parameters, by name, in the types of the model's parameters.

        Between rounds, evaluate or publish these; each replica's model is ahead of them. Sharded
        parameters are returned as DTensors with the same sharding. Sends nothing.
        """
        found = {
            slot.name: _as_parameter(tensor, slot.parameter)
            for each in self._rounds.parts()
            for slot, tensor in each.part.tensors(each.parameters)
        }
        return {name: like(each, found.get(name)) for name, each in self._parameters.items()}

    def stats(self) -> OuterStatistics:
        """Return what this replica has done so far. Sends nothing."""
        found = self._rounds.statistics.copy()
        found["seconds"] = time.monotonic() - self._made
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return the inner optimizer's state, with this replica's outer state under "gtopk".

        The state and, between rounds, the model differ between replicas, so save both on every
        replica. Waits for an exchange that is under way; its result is saved, and used when it is
        due.
        """
        saved = outer_saved.write(self._settings, self._rounds, self._group)
        return {**self._inner.state_dict(), "gtopk": saved}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load both states; a plain optimizer's state leaves the outer state unchanged.

        Raises ValueError for a state with other settings or parameters, or of another replica.
        """
        if "gtopk" in state_dict:
            with torch.no_grad():
                outer_saved.read(state_dict["gtopk"], self._settings, self._rounds, self._group)
        plain = {name: each for name, each in state_dict.items() if name != "gtopk"}
        self._inner.load_state_dict(plain)

    def _make_alike(self, lines: Sequence[Line]) -> None:
        """Compare settings, then give every replica the first one's parameters. Collective."""
        group, quorum = self._group, self._settings.quorum
        backend_of(group)
        if self._settings.grace is not None:
            raise ValueError(
                f"gtopk: grace={self._settings.grace} needs a gtopk.ReplicaGroup: each exchange of "
                "a process group of torch.distributed needs all of its ranks"
            )
        if quorum > dist.get_world_size(group):
            raise ValueError(
                f"gtopk: quorum={quorum} is more than the number of replicas, "
                f"{dist.get_world_size(group)}"
            )
        self._replica.compare(self._settings.as_lines(), self._parameters)
        self._replica.all_succeed(lambda: check_alike(lines, group, ALIKE))
        for tensor in (*self._model.parameters(), *self._model.buffers()):
            dist.broadcast(local_of(tensor.detach()), group=group, group_src=0)

    def _inner_step(self, closure: Callable[[], Any] | None) -> Any:
        """Step the inner optimizer, unless a GradScaler found a gradient that is not finite."""
        scale, found = (self.__dict__.get(name) for name in ("grad_scale", "found_inf"))
        if found is None:
            return self._inner.step(closure)
        if getattr(self._inner, "_step_supports_amp_scaling", False):
            self._inner.grad_scale, self._inner.found_inf = scale, found  # type: ignore[attr-defined]
            try:
                return self._inner.step(closure)
            finally:
                del self._inner.grad_scale, self._inner.found_inf  # type: ignore[attr-defined]
        if found.item():
            return None
        if scale is not None:
            _unscale(self._inner, scale)
        return self._inner.step(closure)

    def _exchange_gradients(self, closure: Callable[[], Any] | None) -> Any:
        """Exchange the gradients; the inner optimizer does not step."""
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        scale, found = (self.__dict__.get(name) for name in ("grad_scale", "found_inf"))
        if scale is not None:
            _unscale(self._inner, scale)
        self._rounds.after_step(finite=found is None or not found.item())
        return result

    def _makes_state(self) -> bool:
        """Return whether this is one of torch's steps that make an optimizer allocate its state.

        `torch.distributed.checkpoint.state_dict` sets zeros as gradients, without a backward, and
        learning rates of zero.
        """
        groups = self._inner.param_groups
        if any(float(group.get("lr", 1)) for group in groups):
            return False
        gradients = [each.grad for group in groups for each in group["params"]]
        return all(each is not None and not each.any() for each in gradients)


def _module(model: object, group: dist.ProcessGroup | None) -> nn.Module:
    """Return the plain module of one that may be compiled, or wrapped by a DDP of other ranks."""
    module = uncompiled(model)
    if isinstance(module, nn.parallel.DistributedDataParallel):
        mine = default_group() if group is None else group
        if module.process_group is mine:
            raise ValueError(
                "gtopk: DDP already averages each gradient over the OuterOptimizer's group: give "
                "one of them another group, or leave DDP out"
            )
        if has_ranks_that_change(group) and dist.get_world_size(module.process_group) > 1:
            raise NotImplementedError(
                "gtopk: an OuterOptimizer over a ReplicaGroup is not implemented for replicas of "
                "ranks that DDP joins, as these would not decide together whether a round counts: "
                "shard the model with fully_shard instead"
            )
        module = uncompiled(module.module)
    if not isinstance(module, nn.Module):
        raise ValueError(f"gtopk: model must be a torch.nn.Module, given {type(model).__name__}")
    return module


def _exchanged(inner: object, module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters that the inner optimizer trains, by name, in the model's order."""
    if not isinstance(inner, torch.optim.Optimizer):
        raise ValueError(
            f"gtopk: inner must be a torch.optim.Optimizer, given {type(inner).__name__}"
        )
    if isinstance(inner, OuterOptimizer):
        raise ValueError("gtopk: inner must be a plain optimizer, given an OuterOptimizer")
    found = trained_parameters(module, shards=True)
    its = [each for group in inner.param_groups for each in group["params"]]
    known = {id(each) for each in module.parameters()}
    missing = [each for each in its if id(each) not in known]
    if missing:
        raise ValueError(
            f"gtopk: {len(missing)} parameters of the inner optimizer are not the model's, the "
            f"first of shape {tuple(missing[0].shape)}"
        )
    has = {id(each) for each in its}
    exchanged = {name: each for name, each in found.items() if id(each) in has and each.numel()}
    if not exchanged:
        raise ValueError("gtopk: the inner optimizer trains no parameter of the model")
    return exchanged


def _others(module: nn.Module, parameters: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """Return the parameters that are not exchanged, and the buffers."""
    exchanged = {id(each) for each in parameters.values()}
    its = (*module.parameters(), *module.buffers())
    return [each for each in its if id(each) not in exchanged]


def _as_parameter(tensor: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Return a copy in the parameter's type."""
    if parameter.is_complex():
        real = tensor.to(parameter.device, copy=True, memory_format=torch.contiguous_format)
        return torch.view_as_complex(real)
    return tensor.to(parameter.device, parameter.dtype, copy=True)


def _unscale(optimizer: torch.optim.Optimizer, scale: torch.Tensor) -> None:
    """Divide gradients by a GradScaler's scale, with the same bits as the scaler."""
    inverse = scale.double().reciprocal().float()
    for group in optimizer.param_groups:
        for each in group["params"]:
            if each.grad is not None:
                values = each.grad._values() if each.grad.is_sparse else local_of(each.grad)
                values.mul_(inverse.to(values.device))
