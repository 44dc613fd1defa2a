"""Units end on any thread, at any time. No processes, a simulated backend."""

from __future__ import annotations

import threading

import pytest
import torch
from gtopk.exchange import backward as backwards
from gtopk.training import ddp_backward as buckets
from torch import nn

import gtopk

WATCHDOG = 60


class Work:
    """An operation that ends when the test says so, on the thread that says it."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.tensors = tensors
        self.future: torch.futures.Future = torch.futures.Future()

    def get_future(self) -> torch.futures.Future:
        return self.future

    def wait(self) -> None:
        raise RuntimeError("aborted")  # for those that wait; its end may still be to come

    def end(self, error: Exception | None = None) -> None:
        if error:
            self.future.set_exception(error)
        else:
            torch._foreach_mul_(self.tensors, 2)
            self.future.set_result(self.tensors)


class Backend:
    """Doubles its input."""

    def __init__(self) -> None:
        self.works: list[Work] = []

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 2

    def sparse_all_reduce(self, tensors: list[torch.Tensor], *_: object, **__: object) -> Work:
        self.works.append(Work(tensors))
        return self.works[-1]

    def end_of(self, work: Work) -> torch.futures.Future:
        return work.get_future()

    def allreduce(self, tensors: list[torch.Tensor], _: object) -> Work:
        return self.sparse_all_reduce(tensors)


class Bucket:
    """What DDP passes to a hook: gradients one after the other in a buffer."""

    def __init__(self, at: int, of: int, parameters: list[nn.Parameter], value: float) -> None:
        self._at, self._of, self._parameters = at, of, parameters
        self._buffer = torch.full((sum(each.numel() for each in parameters),), value)

    def index(self) -> int:
        return self._at

    def is_last(self) -> bool:
        return self._at == self._of - 1

    def parameters(self) -> list[nn.Parameter]:
        return self._parameters

    def buffer(self) -> torch.Tensor:
        return self._buffer

    def sparse(self) -> Bucket:
        """The same gradients as sparse COO."""
        self._buffer = self._buffer.to_sparse()
        return self

    def gradients(self) -> list[torch.Tensor]:
        pieces = self._buffer.split([each.numel() for each in self._parameters])
        return [p.view_as(of) for p, of in zip(pieces, self._parameters, strict=True)]


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Backend:
    made = Backend()
    for module in (buckets, backwards):
        monkeypatch.setattr(module, "backend_of", lambda _: made)
    monkeypatch.setattr(buckets, "check_group", lambda *_: None)
    monkeypatch.setattr(backwards, "check_alike", lambda *_: None)
    return made


def test_units_ending_together_on_threads_complete_all_buckets(backend: Backend):
    # Each unit has a large and a small part and spans two buckets, each bucket four units.
    parameters = [nn.Parameter(torch.zeros(size)) for _ in range(8) for size in (2000, 10)]
    named = [(f"p{i}", each) for i, each in enumerate(parameters)]
    state = gtopk.SparseState(named, unit=2 * 2010 * 4)
    assert len(state.units) == 4
    for step in range(50):
        handed_in = [Bucket(i, 2, parameters[i::2], step + 1.0) for i in range(2)]
        backend.works.clear()
        futures = [state.backward.source.arrive(each) for each in handed_in]
        assert len(backend.works) == 8
        together = threading.Barrier(8)

        def end(work: Work, together: threading.Barrier = together) -> None:
            together.wait(WATCHDOG)
            work.end()

        threads = [threading.Thread(target=end, args=(each,)) for each in backend.works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WATCHDOG)
        for bucket, future in zip(handed_in, futures, strict=True):
            assert future.done()
            assert future.value() is bucket.buffer()
            assert bucket.buffer().unique().tolist() == [2 * (step + 1.0)]
    assert state.step == 50


def test_late_error_of_a_broken_backward_spares_the_next_one(backend: Backend):
    parameters = [nn.Parameter(torch.zeros(2000)) for _ in range(4)]
    named = [(f"p{i}", each) for i, each in enumerate(parameters)]
    state = gtopk.SparseState(named, unit=4000 * 4)  # two units, each in two buckets of three
    first = state.backward.source.arrive(Bucket(0, 3, parameters[2:], 1.0))
    (late,) = backend.works
    handed_in = [Bucket(0, 2, parameters[1:], 5.0), Bucket(1, 2, parameters[:1], 5.0)]
    futures: list[torch.futures.Future] = []
    beginning = threading.Thread(
        target=lambda: futures.append(state.backward.source.arrive(handed_in[0]))
    )
    beginning.start()
    late.end(ConnectionError("late"))
    beginning.join(WATCHDOG)
    with pytest.raises(RuntimeError, match="late"):
        first.wait()
    futures.append(state.backward.source.arrive(handed_in[1]))
    for work in backend.works[1:]:
        work.end()
    for bucket, future in zip(handed_in, futures, strict=True):
        assert future.wait() is bucket.buffer()
        assert bucket.buffer().unique().tolist() == [10.0]
    assert state.step == 1


class Gate:
    """Records what arrives at it."""

    def __init__(self) -> None:
        self.arrived: list[bool] = []
        self.is_shut = False

    def arrive(self, happened: bool) -> None:
        self.arrived.append(happened)

    def shut(self) -> None:
        self.is_shut = True


class AllReduce(Work):
    """Of a sparse gradient; ends on another thread at the latest when somebody waits for it."""

    def wait(self) -> None:
        thread = threading.Thread(target=self.end)
        thread.start()
        thread.join(WATCHDOG)

    def end(self, _: Exception | None = None) -> None:
        if not self.future.done():
            self.future.set_result(self.tensors)


def test_sparse_gradient_of_broken_backward_keeps_its_own_gate(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
):
    words, weight = nn.Parameter(torch.zeros(40)), nn.Parameter(torch.zeros(2000))
    gates: list[Gate] = []
    sums: list[AllReduce] = []

    def gate(_: int) -> Gate:
        gates.append(Gate())
        return gates[-1]

    def allreduce(tensors: list[torch.Tensor], _: object) -> AllReduce:
        sums.append(AllReduce(tensors))
        return sums[-1]

    monkeypatch.setattr(backwards._native, "gate", gate)
    monkeypatch.setattr(backend, "allreduce", allreduce)
    monkeypatch.setattr(buckets, "ddps_around", lambda *_: [nn.Embedding(40, 1, sparse=True)])
    monkeypatch.setattr(buckets, "check_options", lambda _: None)
    monkeypatch.setattr(buckets, "check_join", lambda _: None)
    monkeypatch.setattr(buckets, "may_drop", lambda _: False)
    monkeypatch.setattr(buckets, "sparse_gradients", lambda _: 1)
    state = gtopk.SparseState([("weight", weight)], scaler=torch.amp.GradScaler("cpu"))
    state.backward.source.arrive(Bucket(0, 2, [words], 1.0).sparse())
    futures = [state.backward.source.arrive(Bucket(0, 2, [words], 1.0).sparse())]
    assert sums[0].future.done()
    assert not sums[1].future.done()
    futures.append(state.backward.source.arrive(Bucket(1, 2, [weight], 1.0)))
    for work in (sums[1], *backend.works):
        work.end()
    for future in futures:
        future.wait()
    # A unit's operation arrives at its gate itself, in the core.
    assert [(each.arrived, each.is_shut) for each in gates] == [([True], True), ([True], False)]


def test_one_part_that_fails_fails_the_buckets_of_its_unit_alone(backend: Backend):
    parameters = [nn.Parameter(torch.zeros(size)) for size in (2000, 10, 2000, 10)]
    named = [(f"p{i}", each) for i, each in enumerate(parameters)]
    state = gtopk.SparseState(named, unit=2010 * 4)
    handed_in = [Bucket(0, 2, parameters[2:], 3.0), Bucket(1, 2, parameters[:2], 3.0)]
    futures = [state.backward.source.arrive(each) for each in handed_in]
    ends = [None, ConnectionError("gone"), None, None]
    for work, error in zip(backend.works, ends, strict=True):
        work.end(error)
    with pytest.raises(RuntimeError, match="gone"):
        futures[0].wait()
    assert futures[1].wait().unique().tolist() == [6.0]
