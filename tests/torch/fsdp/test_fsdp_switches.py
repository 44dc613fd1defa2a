"""``gtopk.fsdp_hook`` and the switches of FSDP2's modules: each is honoured as under FSDP2's own
replication (HSDP), beside which it is trained here, or refused.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_collectives import (
    DefaultAllGather,
    DefaultReduceScatter,
)
from torch.utils.checkpoint import checkpoint

import gtopk
from helpers.fsdp import Training
from helpers.fsdp_parts import Branches, cases
from helpers.parallel import batch, loss_of, network
from helpers.ranks import Rank, RankSet

pytestmark = pytest.mark.loopback

STEPS, MICRO = 2, 3


def modules_of(model: nn.Module) -> list[FSDPModule]:
    return [each for each in model.modules() if isinstance(each, FSDPModule)]


def every(name: str, *arguments):
    """A switch that each module has for itself."""

    def switch(model: nn.Module, last: bool) -> None:
        for module in modules_of(model):
            getattr(module, name)(*arguments)

    return switch


def prefetches(model: nn.Module, last: bool) -> None:
    root, layer = modules_of(model)
    root.set_modules_to_forward_prefetch([layer])
    root.set_modules_to_backward_prefetch([layer])


def keeps_parameters(model: nn.Module, last: bool) -> None:
    for module in modules_of(model):
        module.set_reshard_after_forward(False)
        module.set_unshard_in_backward(False)


# Called before each backward with the model, and whether it is the last micro-batch of a step. The
# second entry says in which micro-batches there is traffic between the replicas.
ALWAYS, AT_LAST = (True, True, True), (False, False, True)
SWITCHES = {
    "requires_all_reduce": (lambda m, last: m.set_requires_all_reduce(last), AT_LAST),
    "requires_gradient_sync": (lambda m, last: m.set_requires_gradient_sync(last), AT_LAST),
    "is_last_backward": (lambda m, last: m.set_is_last_backward(last), ALWAYS),
    "reshard_after_backward": (lambda m, last: m.set_reshard_after_backward(last), ALWAYS),
    "reshard_after_forward": (lambda m, *_: m.set_reshard_after_forward(False), ALWAYS),
    "unshard_in_backward": (keeps_parameters, ALWAYS),
    "modules_to_forward_prefetch": (prefetches, ALWAYS),
    "modules_to_backward_prefetch": (prefetches, ALWAYS),
    "gradient_divide_factor": (every("set_gradient_divide_factor", 3.0), ALWAYS),
    "reduce_scatter_divide_factor": (every("set_reduce_scatter_divide_factor", 3.0), ALWAYS),
    "force_sum_reduction_for_comms": (every("set_force_sum_reduction_for_comms", True), ALWAYS),
    "custom_all_gather": (every("set_custom_all_gather", DefaultAllGather()), ALWAYS),
    "custom_reduce_scatter": (every("set_custom_reduce_scatter", DefaultReduceScatter()), ALWAYS),
    "allocate_memory_from_process_group_for_comm": (
        every("set_allocate_memory_from_process_group_for_comm", True),
        ALWAYS,
    ),
    "post_optim_event": (lambda m, *_: m.set_post_optim_event(torch.Event()), ALWAYS),
    # Since torch 2.13, and since 2.15.
    "reduce_scatter_unused_params": (every("set_reduce_scatter_unused_params", True), ALWAYS),
    "reduce_scatter_max_input_buffers": (every("set_reduce_scatter_max_input_buffers", 2), ALWAYS),
    "separate_reduce_scatter_group": (
        lambda m, *_: m.set_separate_reduce_scatter_group(True),
        ALWAYS,
    ),
    "keep_unsharded_storage": (lambda m, *_: m.set_keep_unsharded_storage(True), ALWAYS),
}
REFUSED = {"all_reduce_hook", "manual_backward_finalization"}
FOR_NCCL = {"symm_mem_for_comm"}


def switches() -> set[str]:
    """Those of this torch."""
    return {name.removeprefix("set_") for name in dir(FSDPModule) if name.startswith("set_")}


def test_every_switch_of_fsdp2_is_tried() -> None:
    assert switches() <= {*SWITCHES, *REFUSED, *FOR_NCCL}


def sent(group: dist.ProcessGroup) -> int:
    return gtopk.stats(group)["bytes_sent"]


def micro_batches(training: Training, switch):
    """Train; yield after each backward."""
    for _ in range(STEPS):
        training.optimizer.zero_grad()
        for micro in range(MICRO):
            switch(training.model, micro == MICRO - 1)
            training.backward()
            yield training
        training.optimizer.step()


def check_each_switch_trains_as_under_hsdp(me: Rank) -> None:
    for name in sorted(switches() & SWITCHES.keys()):
        switch, traffic = SWITCHES[name]
        training, hsdp = Training(me, warmup=[("dense", 99)]), Training(me, dense=True)
        before, bytes_sent = sent(training.replicas), []
        both = zip(micro_batches(training, switch), micro_batches(hsdp, switch), strict=True)
        for _ in both:
            bytes_sent.append(sent(training.replicas) - before)
            before = sent(training.replicas)
            for mine, other in zip(
                training.model.parameters(), hsdp.model.parameters(), strict=True
            ):
                assert (mine.grad is None) == (other.grad is None), name
                if mine.grad is not None:
                    torch.testing.assert_close(mine.grad.to_local(), other.grad.to_local())
        assert [each > 0 for each in bytes_sent] == STEPS * [*traffic], name
        assert len(set(bytes_sent[MICRO:])) == len(set(traffic)), name
        assert training.state.step == STEPS * sum(traffic), name
        for mine, other in zip(training.shards(), hsdp.shards(), strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)
        assert training.replicas_are_bitwise_equal()


def check_what_was_not_all_reduced_is_exchanged_once(me: Rank) -> None:
    """The sum of the micro-batches, bit for bit, with every argument that waits for something."""
    for model in (network, Branches):
        for name, beside in cases(me, model):
            sharded = beside.training.model
            for step in range(3):
                beside.training.optimizer.zero_grad()
                sharded.set_requires_all_reduce(False)
                steps = beside.state.step
                losses = [
                    loss_of(sharded, batch(me.rank, 10 * step + micro))
                    if model is network
                    else sharded(batch(me.rank, 10 * step + micro), "abc"[micro])
                    for micro in range(MICRO)
                ]
                beside.accumulate(losses[:-1])
                assert beside.state.step == steps
                assert all(each.grad is None for each in sharded.parameters())
                sharded.set_requires_all_reduce(True)
                beside.backward(losses[-1], kept=True)
                beside.check()
                beside.step()
            assert beside.training.replicas_are_bitwise_equal(), name


def check_a_module_that_the_last_micro_batch_leaves_out(me: Rank) -> None:
    """What is pending of it is exchanged at the end of the backward."""
    found = []
    for leaves_out in (False, True):
        model = Branches()
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        for layer in model.layers.values():
            fully_shard(layer, mesh=mesh["shard"])
        fully_shard(model, mesh=mesh["shard"])
        state = gtopk.fsdp_hook(model, mesh["replicate"], density=0.2, min_numel=30)
        model.set_requires_all_reduce(False)
        model(batch(me.rank, 0), "abc").backward()
        model.set_requires_all_reduce(True)
        model(batch(me.rank, 1), "b" if leaves_out else "abc").backward()
        assert state.step == 1
        assert all(each.grad is not None for each in model.parameters())
        used = model.layers["b"].weight
        found.append((used.grad.to_local(), *state.state_dict()["residuals"].values()))
        alone = model.layers["a"].weight.grad.to_local()
        assert alone.any() or not alone.numel()
    assert torch.equal(found[0][0], found[1][0])
    dist.barrier()


def check_one_module_alone_waits(me: Rank) -> None:
    training = Training(me, density=0.2)
    layer = training.model[2]
    for waits in (True, False, False):
        layer.set_requires_all_reduce(not waits, recurse=False)
        training.optimizer.zero_grad()
        training.backward()
        assert (layer.weight.grad is None) == waits
        assert training.model[0].weight.grad is not None
    assert training.state.step == 3
    assert training.replicas_are_bitwise_equal()


def check_half_types_add_up_in_single_precision(me: Rank) -> None:
    """FSDP's divisor counts as well: it divides what it has reduced in float16 in two steps."""
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float16)
    training, hsdp = (
        Training(me, policy=policy, dense=dense, **({} if dense else {"density": 1.0}))
        for dense in (False, True)
    )
    for each in (training, hsdp):
        for _ in micro_batches(each, SWITCHES["requires_all_reduce"][0]):
            pass
    for mine, other in zip(training.shards(), hsdp.shards(), strict=True):
        torch.testing.assert_close(mine, other, rtol=2e-3, atol=2e-3)
    assert training.state.step == STEPS


def check_what_is_refused_says_so(me: Rank) -> None:
    def other_hook(output: torch.Tensor) -> None:
        pass

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = fully_shard(network(), mesh=mesh["shard"])
    model.set_all_reduce_hook(other_hook)
    with pytest.raises(
        RuntimeError, match=r"has an all-reduce hook, .*other_hook, and FSDP2 calls only one"
    ):
        gtopk.fsdp_hook(model, mesh["replicate"])
    training = Training(me, density=0.1)
    training.step()
    training.model[2].set_all_reduce_hook(other_hook)
    with pytest.raises(RuntimeError, match=r"hook of module '2' has been replaced by .*other_hook"):
        training.step()
    hooked = Training(me, density=0.1)
    for parameter in hooked.model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: None)
    hooked.model.set_requires_all_reduce(False)
    with pytest.raises(NotImplementedError, match=r"has hooks .* set_requires_all_reduce\(False\)"):
        hooked.backward()
    dist.barrier()


def check_parameters_that_are_converted_later_are_named(me: Rank) -> None:
    training = Training(me, density=0.1)
    training.model.double()
    with pytest.raises(ValueError, match=r"as torch\.float64, .* after parameters are converted"):
        loss_of(training.model, torch.ones(8, 24, dtype=torch.float64)).backward()
    dist.barrier()


def check_reduction_outside_of_a_backward_is_refused(me: Rank) -> None:
    """As a stage of a pipeline does it."""
    training = Training(me, density=0.1)
    training.model.set_requires_gradient_sync(False)
    training.backward()
    training.model.set_requires_gradient_sync(True)
    with pytest.raises(NotImplementedError, match="outside of a backward, as in a stage"):
        training.model._get_fsdp_state()._fsdp_param_group.post_backward()
    dist.barrier()


class Recomputes(nn.Module):
    """FSDP's modules within checkpoints; re-entrant ones run a backward inside the backward."""

    def __init__(self, reentrant: bool, has_first: bool = True) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.reentrant = reentrant
        self.first = nn.Linear(24, 24) if has_first else nn.Identity()
        self.layers = nn.ModuleList(nn.Linear(24, 24) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x.requires_grad_())
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=self.reentrant)
        return x


def recomputed(me: Rank, model: Recomputes) -> list[torch.Tensor]:
    """Two steps of it; returns the last gradients."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh["shard"])
    fully_shard(model, mesh=mesh["shard"])
    state = gtopk.fsdp_hook(model, mesh["replicate"], density=0.2, min_numel=30, clip_norm=0.01)
    for step in range(2):
        model.zero_grad()
        model(batch(me.rank, step)).square().mean().backward()
    assert state.step == 2
    return [each.grad.to_local() for each in model.parameters()]


def check_modules_that_are_recomputed_are_one_step(me: Rank) -> None:
    """With one norm."""
    both = [recomputed(me, Recomputes(reentrant)) for reentrant in (True, False)]
    assert all(map(torch.equal, *both))
    with pytest.raises(NotImplementedError, match="set use_reentrant=False, or"):
        recomputed(me, Recomputes(True, has_first=False))
    dist.barrier()


def check_several_meshes_in_a_module_are_refused(me: Rank) -> None:
    """FSDP2 has them since torch 2.12."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = fully_shard(network(), mesh=mesh["shard"])
    state = model._get_fsdp_state()
    state._fsdp_param_groups = 2 * [state._fsdp_param_group]
    with pytest.raises(NotImplementedError, match="sharded over several meshes"):
        gtopk.fsdp_hook(model, mesh["replicate"])
    dist.barrier()


def check_replicate_is_refused(me: Rank) -> None:
    from torch.distributed._composable.replicate_with_fsdp import replicate

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    with pytest.raises(ValueError, match=r"is replicated by FSDP itself .* or replicate\(\)"):
        gtopk.fsdp_hook(replicate(network(), mesh=mesh["shard"]), mesh["replicate"])
    dist.barrier()


def check_a_backward_that_raised_takes_what_was_pending_with_it(me: Rank) -> None:
    """Where FSDP2 can go on after it (torch 2.13): gradients of the failed step are lost."""
    training, expected = (Training(me, density=0.2) for _ in range(2))
    if not hasattr(training.model, "reset_iter_state"):
        return

    def broken(gradient: torch.Tensor) -> None:
        raise RuntimeError("broken on purpose")

    training.model.set_requires_all_reduce(False)
    training.backward()
    loss = training.loss()
    hooks = [each.register_hook(broken) for each in training.model[0].parameters()]
    with pytest.raises(RuntimeError, match="broken on purpose"):
        loss.backward()
    for hook in hooks:
        hook.remove()
    training.model.reset_iter_state()
    training.model.set_requires_all_reduce(True)
    expected.at = training.at
    training.step()
    expected.step()
    assert training.state.step == expected.state.step == 1
    # Earlier ones keep gradients of the failed step themselves: "Faults of PyTorch" in
    # docs/compatibility.md.
    for mine, other in zip(training.shards(), expected.shards(), strict=True):
        assert torch.__version__ < "2.15" or torch.equal(mine, other)
    dist.barrier()


def check_a_backward_that_raised_is_over_with_the_next_forward(me: Rank) -> None:
    """Else the next one would receive gradients that it has already."""
    training = Training(me, density=0.2)
    training.step()

    def broken(gradient: torch.Tensor) -> None:
        raise RuntimeError("broken on purpose")

    loss = training.loss()
    for parameter in training.model[0].parameters():
        parameter.register_hook(broken)
    with pytest.raises(RuntimeError, match="broken on purpose"):
        loss.backward()
    source = training.state.source
    assert source.backward.is_open
    source.before_forward()
    assert not source.backward.is_open
    assert not source.backward.exchanges
    assert training.state.step == 1
    dist.barrier()


def test_on_four_ranks(four: RankSet, check) -> None:
    four.run(check)
