"""``gtopk.attach`` and what is around a DDP, copied from it, or registered with it before."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import _apply_optimizer_in_backward
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

import gtopk
from helpers.ranks import Rank, RankSet
from helpers.training import Training, batch, network, replicas_are_bitwise_equal

pytestmark = pytest.mark.loopback


def saved_and_loaded(ddp: DistributedDataParallel) -> DistributedDataParallel:
    file = io.BytesIO()
    torch.save(ddp, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda ddp: pickle.loads(pickle.dumps(ddp)),
    "torch.save": saved_and_loaded,
    "a copy of a copy": lambda ddp: copy.deepcopy(pickle.loads(pickle.dumps(ddp))),
    "AveragedModel": lambda ddp: AveragedModel(ddp).module,
}


def backward(me: Rank, model: nn.Module, step: int = 0) -> None:
    x, labels = batch(me.rank, step)
    nn.functional.cross_entropy(model(x), labels).backward()


def warned(act) -> list[str]:
    """What gtopk warns of meanwhile."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        act()
    return [str(each.message) for each in found if "gtopk" in str(each.message)]


def check_a_copy_that_is_trained_warns_once_and_can_be_attached(me: Rank) -> None:
    for by_hand in (False, True):
        for name, copied in COPIES.items():
            training = Training(me.rank)
            state = (
                training.hooked(density=0.05)
                if by_hand
                else gtopk.attach(training.ddp, density=0.05)
            )
            training.step()
            other = copied(training.ddp)
            found = warned(lambda other=other: [backward(me, other, step) for step in range(2)])
            assert len(found) == (me.rank == 0), (name, found)
            assert all("is a copy of one" in each and "densely" in each for each in found)
            mine = gtopk.attach(other, density=0.05)
            mine.load_state_dict(state.state_dict())
            steps = state.step
            assert warned(lambda other=other: backward(me, other)) == []
            assert (state.step, mine.step) == (steps, steps + 1), name
            assert warned(training.step) == []
            assert state.step == steps + 1


def check_a_copy_continues_bit_for_bit(me: Rank) -> None:
    """With the residuals of the original."""
    training = Training(me.rank)
    state = gtopk.attach(training.ddp, density=0.05)
    training.step()
    other = copy.deepcopy(training.ddp)
    mine = gtopk.attach(other, density=0.05)
    mine.load_state_dict(state.state_dict())
    for ddp in (training.ddp, other):
        ddp.zero_grad()
        backward(me, ddp)
    for one, two in zip(training.ddp.parameters(), other.parameters(), strict=True):
        assert torch.equal(one.grad, two.grad)


def check_copies_that_are_not_trained_do_not_warn(me: Rank) -> None:
    training = Training(me.rank)
    gtopk.attach(training.ddp, density=0.05)
    average = AveragedModel(training.ddp)
    hooked, replaced = copy.deepcopy(training.ddp), copy.deepcopy(training.ddp)
    replaced.register_comm_hook(None, default_hooks.allreduce_hook)

    def evaluate() -> None:
        training.step()
        average.update_parameters(training.ddp)
        average(batch(me.rank, 0)[0])  # with a graph that nobody uses
        average.eval()
        with torch.no_grad():
            average(batch(me.rank, 0)[0])
        loss = hooked(batch(me.rank, 0)[0]).square().mean()
        gtopk.attach(hooked, density=0.05)  # between forward and backward
        loss.backward()
        backward(me, replaced)

    assert warned(evaluate) == []


def check_attach_sees_through_compiled_models(me: Rank) -> None:
    for attaches_first in (True, False):
        training = Training(me.rank, bucket_mb=25)
        compiled = torch.compile(training.ddp, backend="eager")
        if attaches_first:
            state = gtopk.attach(training.ddp, density=0.1)
        else:
            backward(me, compiled)
            state = gtopk.attach(compiled, density=0.1)
        backward(me, compiled)
        assert state.step == 1
        assert not any(name.startswith("_orig_mod") for name in state.state_dict()["residuals"])
    training = Training(me.rank)
    compiled = torch.compile(training.model, backend="eager")
    sgd = torch.optim.SGD(compiled.parameters(), lr=0.1)
    optimizer = gtopk.DistributedOptimizer(sgd, compiled, density=0.1)
    assert not any("_orig_mod" in name for name in optimizer.sparse_state.units[0].names)
    backward(me, compiled)
    optimizer.step()
    assert replicas_are_bitwise_equal(training.model)


class Layers(nn.Module):
    """Compiled as it is not one of torch's own classes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = network()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def check_an_attached_ddp_compiles_into_as_few_graphs(me: Rank) -> None:
    counted = []
    for attached in (False, True):
        torch._dynamo.reset()
        graphs: list[torch.fx.GraphModule] = []

        def keeps(graph: torch.fx.GraphModule, _inputs: object, graphs=graphs):
            graphs.append(graph)
            return graph.forward

        training = Training(me.rank, model=Layers(), bucket_mb=25)
        if attached:
            gtopk.attach(training.ddp, density=0.1)
        compiled = torch.compile(training.ddp, backend=keeps)
        for step in range(3):
            backward(me, compiled, step)
        counted.append(len(graphs))
    assert counted[0] == counted[1] > 0, counted


def named(module: str, name: str, base: type = object) -> type:
    """A class like one of a framework."""
    return type(name, (base,), {"__module__": module})


def places(me: Rank) -> list[tuple[object, str]]:
    """What is not a DDP, and what the error says of where one is."""
    ddp = DistributedDataParallel(network())
    fabric = nn.Module()
    fabric._forward_module = ddp
    trains = named("transformers.trainer", "Trainer")()
    wraps = named("transformers.trainer", "Seq2SeqTrainer", type(trains))()
    wraps.model_wrapped = torch.compile(ddp, backend="eager")
    return [
        (
            network(),
            r"given Sequential: call gtopk\.attach\(DistributedDataParallel\(model\), ",
        ),
        (fabric, "given Module: it is in its _forward_module"),
        (SimpleNamespace(net=ddp), "given SimpleNamespace: it is in its net"),
        (
            trains,
            r"given Trainer: .*model_wrapped once train\(\) has begun.*on_train_begin",
        ),
        (wraps, "given Seq2SeqTrainer: it is in its model_wrapped"),
        (
            named("transformers.modeling_utils", "PreTrainedModel", nn.Module)(),
            r"model_wrapped once train\(\) has begun.*; without a Trainer, call gtopk\.attach",
        ),
        (named("lightning.fabric.fabric", "Fabric")(), r"fabric\.setup\(model\) returns"),
        (named("lightning_fabric.fabric", "Fabric")(), r"fabric\.setup\(model\) returns"),
        (named("lightning.pytorch.trainer.trainer", "Trainer")(), r"trainer\.strategy\.model from"),
        (named("pytorch_lightning.trainer", "Trainer")(), r"trainer\.strategy\.model from"),
        (named("lightning.x", "LightningModule", nn.Module)(), r"trainer\.strategy\.model from"),
        (
            named("accelerate.accelerator", "Accelerator")(),
            r"accelerator\.prepare\(model\)",
        ),
        (
            named("deepspeed.runtime.engine", "DeepSpeedEngine", nn.Module)(),
            r"given DeepSpeedEngine: DeepSpeed has none: .*stage 0, .*under engine\.no_sync\(\)",
        ),
        (fully_shard(network()), r"FSDP2 has none: call gtopk\.fsdp_hook"),
        (None, "given NoneType: pass the module that is called in the forward"),
        (ddp.state_dict(), "given OrderedDict"),
    ]


def check_the_error_says_where_the_ddp_is(me: Rank) -> None:
    for given, where in places(me):
        with pytest.raises(ValueError, match=where):
            gtopk.attach(given, density=0.1)
    dist.barrier()


def fused(ddp: DistributedDataParallel) -> None:
    ddp._register_fused_optim(torch.optim.SGD, 0.1)


def steps_in_backward() -> DistributedDataParallel:
    model = network()
    _apply_optimizer_in_backward(torch.optim.SGD, model.parameters(), {"lr": 0.1})
    return DistributedDataParallel(model)


def prepared(prepare) -> DistributedDataParallel:
    ddp = DistributedDataParallel(network())
    prepare(ddp)
    return ddp


# How a DDP got its hook, and what attach says of it.
HOOKED = {
    "by attach": (
        lambda: prepared(lambda ddp: gtopk.attach(ddp, density=0.1)),
        r"already has a communication hook, gtopk\.sparse_hook: keep using the state",
    ),
    "a stock hook": (
        lambda: prepared(lambda d: d.register_comm_hook(None, default_hooks.fp16_compress_hook)),
        r"a communication hook, fp16_compress_hook, and takes only one: make the DDP without it$",
    ),
    "a built-in hook": (
        lambda: prepared(
            lambda d: d._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
        ),
        r"already has a communication hook, \S*FP16_COMPRESS, and takes only one",
    ),
    "a fused optimizer": (
        lambda: prepared(fused),
        r"a communication hook, .* \(of _register_fused_optim\), and takes only one",
    ),
}


def check_the_error_names_the_hook_that_is_there(me: Rank) -> None:
    for make, says in HOOKED.values():
        with pytest.raises(RuntimeError, match=says):
            gtopk.attach(make(), density=0.1)
    with pytest.raises(NotImplementedError, match=r"step in the backward \(apply_optimizer_in_"):
        gtopk.attach(steps_in_backward(), density=0.1)
    dist.barrier()


def check_a_wrapper_that_casts_is_named(me: Rank) -> None:
    """Not DDP's mixed_precision, with which its error began."""
    for wrap, name in (
        (default_hooks.fp16_compress_wrapper, "fp16_compress_wrapper"),
        (default_hooks.bf16_compress_wrapper, "bf16_compress_wrapper"),
    ):
        ddp = DistributedDataParallel(network())
        ddp._check_comm_hook = lambda hook: None  # which wants CUDA for bfloat16
        state = gtopk.SparseState(ddp.module, density=0.1)
        ddp.register_comm_hook(state, wrap(gtopk.sparse_hook))
        with pytest.raises(NotImplementedError, match=rf"hook is {name}.*wire='bf16'"):
            backward(me, ddp)
    dist.barrier()


def check_a_hook_without_a_state_says_so(me: Rank) -> None:
    ddp = DistributedDataParallel(network())
    ddp.register_comm_hook(None, gtopk.sparse_hook)
    with pytest.raises(ValueError, match=r"a SparseState, given NoneType: call gtopk\.attach"):
        backward(me, ddp)
    dist.barrier()


def check_a_python_reducer_is_refused(me: Rank) -> None:
    ddp = DistributedDataParallel(network())
    ddp._use_python_reducer = True  # made only with compiled autograd
    with pytest.raises(NotImplementedError, match="optimize_ddp = 'python_reducer'"):
        gtopk.attach(ddp, density=0.1)
    dist.barrier()


def check_join_divides_by_all_ranks_or_says_that_it_does_not(me: Rank) -> None:
    training = Training(me.rank)
    state = gtopk.attach(training.ddp, density=1.0)
    with training.ddp.join(divide_by_initial_world_size=True):
        for _ in range(2 + me.rank):
            training.step()
    assert state.step == 1 + me.size
    refused = pytest.raises(NotImplementedError, match="means over all ranks")
    with refused, training.ddp.join(divide_by_initial_world_size=False):
        training.step()
    dist.barrier()


class Shared(nn.Module):
    """One layer in two checkpoints."""

    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        torch.manual_seed(8)
        self.reentrant = reentrant
        self.first, self.shared, self.last = (nn.Linear(24, 24) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for _ in range(2):
            if self.reentrant is None:
                x = self.shared(x)
            else:
                x = checkpoint(self.shared, x, use_reentrant=self.reentrant)
        return self.last(x)


def check_a_shared_weight_that_is_recomputed_names_two_remedies(me: Rank) -> None:
    """Which work: its gradient is that without checkpoints."""

    def trained(reentrant: bool | None, static_graph: bool = False) -> list[torch.Tensor]:
        model = forward = Shared(reentrant)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        if static_graph:
            forward = DistributedDataParallel(model, static_graph=True)
            gtopk.attach(forward, density=1.0)
        else:
            optimizer = gtopk.DistributedOptimizer(optimizer, model, density=1.0)
        for step in range(3):
            optimizer.zero_grad()
            forward(batch(me.rank, step)[0]).square().mean().backward()
            optimizer.step()
        return [each.detach() for each in model.parameters()]

    expected = trained(None)
    for remedy in (trained(False), trained(True, static_graph=True)):
        for one, other in zip(expected, remedy, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    says = r"'shared\.\w+' .* set use_reentrant=False, or use .*\(model, static_graph=True\)"
    with pytest.raises(RuntimeError, match=says):
        trained(True)
    plain = Shared(None)
    optimizer = gtopk.DistributedOptimizer(
        torch.optim.SGD(plain.parameters(), lr=0.05), plain, density=1.0
    )
    # Not of checkpoints: what is wrong there is another thing.
    losses = [plain.first(batch(me.rank, step)[0]).square().mean() for step in range(2)]
    losses[0].backward()
    with pytest.raises(RuntimeError, match=r"before step\(\) or synchronize\(\), or again"):
        losses[1].backward()
    optimizer.zero_grad()
    dist.barrier()


def test_on_four_ranks(four: RankSet, check) -> None:
    four.run(check)
