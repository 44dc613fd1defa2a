"""What training loops do that is odd and legal, under each way to train."""

from __future__ import annotations

import copy
import pickle
import shutil
import tempfile

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gtopk
from helpers.fsdp import Training as Sharded
from helpers.optimizer import Branches, total
from helpers.ranks import Rank, RankSet
from helpers.training import (
    Plain,
    Training,
    batch,
    equal,
    flat,
    network,
    replicas_are_bitwise_equal,
)

pytestmark = pytest.mark.loopback

ARGUMENTS = {"density": 0.05, "unit": 8 * 1024, "momentum": 0.9, "select": "threshold"}


def tensors(state: gtopk.SparseState) -> list[torch.Tensor]:
    saved = state.state_dict()
    return [*saved["residuals"].values(), *saved["momenta"].values(), *saved["selector"]["states"]]


def hooked(me: Rank, **arguments) -> tuple[Training, gtopk.SparseState]:
    training = Training(me.rank)
    training.optimizer = torch.optim.SGD(training.ddp.parameters(), lr=0.05)
    return training, gtopk.attach(training.ddp, **{**ARGUMENTS, **arguments})


# Each does something to a training, between its steps; nothing of it may change a bit.
def saves_in_inference_mode(training: Training, state: gtopk.SparseState) -> None:
    with torch.inference_mode():
        state.load_state_dict(state.state_dict())
        state.residual("0.weight")
        state.momentum("0.weight")
        training.ddp(torch.ones(2, 24))


def copies(training: Training, state: gtopk.SparseState) -> None:
    saved = pickle.loads(pickle.dumps(state)).state_dict()
    state.load_state_dict(saved)
    copied = copy.deepcopy(state)
    copied.bind(training.model.named_parameters(), state.group)
    state.load_state_dict(copied.state_dict())


def evaluates(training: Training, state: gtopk.SparseState) -> None:
    training.ddp.eval()
    with torch.no_grad():
        training.ddp(torch.ones(2, 24))
    training.ddp.train()
    copy.deepcopy(training.model)(torch.ones(2, 24)).sum().backward()  # of a copy: not exchanged


def other_defaults(training: Training, state: gtopk.SparseState) -> None:
    torch.set_default_dtype(torch.float64)
    torch.use_deterministic_algorithms(True)


INTERLUDES = (saves_in_inference_mode, copies, evaluates, other_defaults)


def check_what_happens_between_steps_changes_no_bit(me: Rank) -> None:
    expected, state = hooked(me)
    expected.steps(4)
    for interlude in INTERLUDES:
        training, other = hooked(me)
        batches = [batch(me.rank, step) for step in range(4)]
        try:
            for x, labels in batches:
                interlude(training, other)
                training.optimizer.zero_grad()
                nn.functional.cross_entropy(training.ddp(x), labels).backward()
                training.optimizer.step()
        finally:
            torch.set_default_dtype(torch.float32)
            torch.use_deterministic_algorithms(False)
        assert torch.equal(flat(training.model), flat(expected.model)), interlude
        assert equal(tensors(other), tensors(state)), interlude


def check_tensors_of_its_own_are_made_where_they_belong(me: Rank) -> None:
    """Whatever torch.set_default_device() says: here, a device whose tensors hold nothing."""
    training, state = hooked(me)
    training.steps(2)
    expected = tensors(state)
    folders = [tempfile.mkdtemp() if me.rank == 0 else None]
    dist.broadcast_object_list(folders, 0)
    x, labels = batch(me.rank, 0)
    plain = Plain(me.rank, **ARGUMENTS)
    side_by_side = torch.ones(2, 8).t()
    with torch.device("meta"):
        gtopk.save(state, f"{folders[0]}/state")
        gtopk.load(state, f"{folders[0]}/state")
        assert equal(tensors(state), expected)
        gtopk.plan(1000, density=0.01)
        gtopk.sparse_all_reduce(side_by_side[:, 0], k=1, residual=side_by_side[:, 1])
        gtopk.diagnose(state, 1)
        nn.functional.cross_entropy(training.ddp(x), labels).backward()
        plain.optimizer.step(lambda: nn.functional.cross_entropy(plain.model(x), labels).item())
    assert gtopk.stats()["diagnosis"].step == 2
    dist.barrier()
    if me.rank == 0:
        shutil.rmtree(folders[0])


def check_ways_to_call_backward(me: Rank) -> None:
    """Of DistributedOptimizer, which reads .grad itself: all are one step of the same gradient."""
    ways = {
        "plainly": lambda loss: loss.backward(),
        "without a gradient mode": lambda loss: torch.no_grad()(loss.backward)(),
        "of two halves": lambda loss: torch.autograd.backward([loss / 2, loss / 2]),
        "with a graph": lambda loss: loss.backward(create_graph=True),
        "with inputs": None,
    }
    expected = None
    for name, way in ways.items():
        training = Plain(me.rank, **ARGUMENTS)
        for _ in range(3):
            training.optimizer.zero_grad()
            if way is None:
                training.loss().backward(inputs=list(training.model.parameters()))
            else:
                way(training.loss())
            training.optimizer.step()
        mine = [flat(training.model).clone(), *tensors(training.state)]
        expected = expected or mine
        assert equal(mine, expected), name


def check_passes_left_over_from_an_epoch(me: Rank) -> None:
    """Of 5 batches, 2 to a step: from the second epoch on a step's last pass follows results."""
    for way in ("step", "synchronize"):
        plain = Plain(me.rank, density=1.0, backward_passes_per_step=2)
        alone = network(0)
        reference = torch.optim.SGD(alone.parameters(), lr=0.05, momentum=0.9)
        for each in [*range(5)] * 3:
            for rank in range(me.size):
                x, labels = batch(rank, plain.at)
                (nn.functional.cross_entropy(alone(x), labels) / me.size).backward()
            plain.loss().backward()
            if each % 2 == 1:
                if way == "synchronize":
                    plain.optimizer.synchronize()
                    assert replicas_are_bitwise_equal(plain.model)
                    with plain.optimizer.skip_synchronize():
                        plain.optimizer.step()
                else:
                    plain.optimizer.step()
                reference.step()
                plain.optimizer.zero_grad()
                reference.zero_grad()
        assert replicas_are_bitwise_equal(plain.model), way
        assert torch.allclose(flat(plain.model), flat(alone), atol=1e-5), way


def check_two_models_that_take_turns(me: Rank) -> None:
    """As a generator and its critic: between one's backward and its step comes the other's."""
    alone = []
    for seed in (1, 2):
        training = Training(me.rank, model=network(seed))
        gtopk.attach(training.ddp, **ARGUMENTS)
        training.steps(3)
        alone.append(flat(training.model).clone())
    both = [Training(me.rank, model=network(seed)) for seed in (1, 2)]
    for training in both:
        gtopk.attach(training.ddp, **ARGUMENTS)
    for _ in range(3):
        losses = [training.loss() for training in both]
        for training, loss in zip(both, losses, strict=True):
            training.optimizer.zero_grad()
            loss.backward()
        for training in both:
            training.optimizer.step()
            training.at += 1
    assert equal([flat(each.model) for each in both], alone)


def check_a_state_outlives_its_group(me: Rank) -> None:
    """The group is left, another is made, and the same state goes on under another DDP."""
    expected, state = hooked(me)
    training = Training(me.rank, group=dist.new_group())
    training.optimizer = torch.optim.SGD(training.ddp.parameters(), lr=0.05)
    moved = gtopk.attach(training.ddp, **ARGUMENTS)
    for _ in range(2):
        expected.steps(2)
        training.steps(2)
        group = dist.new_group()
        dist.destroy_process_group(training.ddp.process_group)
        if training.at == 2:
            training.optimizer.zero_grad()
        training.ddp = DistributedDataParallel(
            training.model, process_group=group, bucket_cap_mb=0.008, broadcast_buffers=False
        )
        moved.bind(training.model.named_parameters(), group)
        training.ddp.register_comm_hook(moved, gtopk.sparse_hook)
    assert torch.equal(flat(training.model), flat(expected.model))
    assert equal(tensors(moved), tensors(state))


def check_a_state_that_moves_after_a_backward_that_broke_off(me: Rank) -> None:
    """What that had delivered was not used: it waits in a residual again."""
    training = Training(me.rank)
    state = gtopk.attach(training.ddp, density=0.05, unit=8 * 1024)
    training.steps(2)
    before = total(state)
    training.optimizer.zero_grad()
    first = next(training.model.parameters())  # its unit is the last
    handle = first.register_hook(broken)
    with pytest.raises(RuntimeError, match="broken on purpose"):
        training.loss().backward()
    handle.remove()
    group = dist.new_group()
    ddp = DistributedDataParallel(training.model, process_group=group, bucket_cap_mb=0.008)
    state.bind(training.model.named_parameters(), group)
    ddp.register_comm_hook(state, gtopk.sparse_hook)
    after = total(state)
    moved = [name for name, each in after.items() if not torch.equal(each, before[name])]
    assert moved  # their gradients
    copy = Training(me.rank)
    copy.model.load_state_dict(training.model.state_dict())
    copy.at = training.at
    gradients = torch.autograd.grad(copy.loss(), [*copy.model.parameters()])
    for (name, _), gradient in zip(copy.model.named_parameters(), gradients, strict=True):
        if name in moved:
            dist.all_reduce(gradient)
            expected = before[name] + gradient.double()
            torch.testing.assert_close(after[name], expected, rtol=1e-4, atol=1e-5)


def broken(gradient: torch.Tensor) -> None:
    raise RuntimeError("broken on purpose")


def check_layers_that_are_frozen_for_a_while(me: Rank) -> None:
    """They stay where they are, what waits for them keeps its sum, and they go on afterwards."""
    model = Branches()
    plain = torch.optim.SGD(model.parameters(), lr=1e-3, weight_decay=0.1)
    optimizer = gtopk.DistributedOptimizer(plain, model, density=0.1, unit="model")
    ddp_model = Branches()
    ddp = DistributedDataParallel(ddp_model, find_unused_parameters=True)
    state = gtopk.attach(ddp, density=0.1, unit="model")
    hook_optimizer = torch.optim.SGD(ddp_model.parameters(), lr=1e-3, weight_decay=0.1)
    x = torch.randn(8, 40, generator=torch.Generator().manual_seed(me.rank))
    for frozen in (False, True, True, False):
        for net, called, stepper, its in (
            (model, model, optimizer, optimizer.sparse_state),
            (ddp_model, ddp, hook_optimizer, state),
        ):
            net.layers["b"].requires_grad_(not frozen)
            before = net.layers["b"].weight.detach().clone(), total(its)["layers.b.weight"]
            stepper.zero_grad()
            called(x, "abc").backward()
            stepper.step()
            same = torch.equal(before[0], net.layers["b"].weight)
            assert same == frozen
            if frozen:
                after = total(its)["layers.b.weight"]
                torch.testing.assert_close(after, before[1], rtol=1e-4, atol=1e-5)
            assert replicas_are_bitwise_equal(net)


def check_gradients_that_nobody_exchanges_are_named(me: Rank) -> None:
    model = Branches()
    model.layers["c"].requires_grad_(False)
    inner = torch.optim.SGD(model.parameters(), lr=1e-3)
    optimizer = gtopk.DistributedOptimizer(inner, model, density=0.1)
    x = torch.ones(2, 40)
    model(x, "abc").backward()
    optimizer.step()
    optimizer.zero_grad()
    model.layers["c"].requires_grad_(True)
    model(x, "abc").backward()
    with pytest.raises(ValueError, match=r"shape \(40, 40\) .* group 0 .* not exchanged"):
        optimizer.step()
    added = nn.Parameter(torch.ones(3))
    model.layers["c"].requires_grad_(False)
    optimizer.zero_grad()
    inner.add_param_group({"params": [added]})  # behind its back
    (model(x, "ab") + added.sum()).backward()
    with pytest.raises(ValueError, match=r"shape \(3,\) in group 1"):
        optimizer.step()
    dist.barrier()


def check_dropped_results_of_another_layout(me: Rank) -> None:
    """Of channels_last, which buckets hold in the order of memory; with a .grad that is kept."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(5)
            self.one = nn.Conv2d(4, 8, 3)
            self.other = nn.Conv2d(4, 8, 3)

        def forward(self, x: torch.Tensor, both: bool) -> torch.Tensor:
            y = self.one(x).square().sum()
            return y + self.other(x).square().sum() if both else y

    for kept in (False, True):
        model = Net().to(memory_format=torch.channels_last)
        ddp = DistributedDataParallel(model, find_unused_parameters=True)
        state = gtopk.attach(ddp, density=0.2, min_numel=9)
        x = torch.randn(2, 4, 6, 5, generator=torch.Generator().manual_seed(me.rank))
        ddp(x, True).backward()
        weight = model.other.weight
        before = total(state)["other.weight"]
        (arrived,) = torch.autograd.grad(model(x, True), [weight])
        arrived = arrived.double()
        dist.all_reduce(arrived)
        torch.testing.assert_close(before + me.size * weight.grad, arrived, rtol=1e-4, atol=1e-3)
        if not kept:
            model.zero_grad()
        ddp(x, False).backward()
        after = total(state)["other.weight"]
        assert (weight.grad is None) != kept
        assert before.any()
        torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-3)


def check_fsdp_with_frozen_layers_and_copied_states(me: Rank) -> None:
    training = Sharded(me, density=0.1)
    training.step()
    with pytest.raises(RuntimeError, match="already has an all-reduce hook"):
        gtopk.fsdp_hook(training.model, training.mesh["replicate"])
    saved = pickle.loads(pickle.dumps(training.state)).state_dict()
    assert saved["place"] == training.state.state_dict()["place"]
    again = Sharded(me, density=0.1)
    again.state.load_state_dict(saved)
    again.model.load_state_dict(training.model.state_dict())
    again.at = training.at
    with torch.inference_mode():
        again.state.load_state_dict(again.state.state_dict())
    assert training.step() == again.step()
    assert equal(training.shards(), again.shards())
    with pytest.raises(NotImplementedError, match="cannot be bound"):
        copy.deepcopy(training.state).bind(training.model.named_parameters())
    weight = training.model[0].weight
    before = weight.to_local().detach().clone()
    weight.requires_grad_(False)
    training.step()
    if weight.grad is None:  # torch does not compute what is frozen from the second backward on
        assert torch.equal(before, weight.to_local())
    weight.requires_grad_(True)
    training.step()
    assert training.replicas_are_bitwise_equal()
    dist.barrier()


def check_hooks_that_reach_for_the_state_are_told(me: Rank) -> None:
    """In the midst of a backward: an error, and the backward goes on as if nothing had been."""
    for make in (
        lambda: Training(me.rank),
        lambda: Plain(me.rank, density=0.1, unit="parameter"),
        lambda: Sharded(me, density=0.1),
    ):
        expected, training = make(), make()
        for each in (expected, training):
            if isinstance(each, Training):
                each.state = gtopk.attach(each.ddp, density=0.1, unit="parameter")
            for _ in range(2):
                each.step()
        state, told = training.state, []
        saved = state.state_dict()
        acts = [
            state.state_dict,
            state.skip,
            lambda state=state, saved=saved: state.load_state_dict(saved),
            lambda state=state: setattr(state, "density", 0.2),
            lambda state=state: pickle.dumps(state),
        ]
        if isinstance(training, Plain):
            acts.append(training.optimizer.zero_grad)

        def tell(_: object, acts=acts, told=told) -> None:
            for act in acts:
                with pytest.raises(RuntimeError, match="during a backward") as error:
                    act()
                told.append(error)

        def late(_module: object, _given: object, output: torch.Tensor, tell=tell) -> None:
            output.register_hook(tell)

        handle = training.model[0].register_forward_hook(late)
        training.step()
        handle.remove()
        assert len(told) == len(acts)
        training.step()
        expected.step()
        expected.step()
        assert equal(tensors(state), tensors(expected.state))
        assert equal(list(training.model.parameters()), list(expected.model.parameters()))


def test_on_four_ranks(four: RankSet, check) -> None:
    four.run(check)
