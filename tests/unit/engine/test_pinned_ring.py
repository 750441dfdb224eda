"""The pinned ring: no place is reused before its copy is done, and no wait is unbounded."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bench.gpu.twin_streams import TwinMark, TwinStreams
from gpu_worker.engine.device import DeviceHung, is_device_lost, is_out_of_memory
from gpu_worker.engine.stream_device import PinnedRing, open_ring
from tests.unit.engine.engine_rig import wait_until

MIB = 1 << 20


def numbered(nbytes: int, seed: int) -> Tensor:
    return torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


class LateCopies:
    """Copies that read their place only when somebody asks whether they are done, one a question."""

    def __init__(self, lag: int) -> None:
        self.lag = lag
        self.waiting: deque[Callable[[], None]] = deque()
        self.asked = 0

    def start(self, target: Tensor) -> Callable[[Tensor, int], LateMark]:
        def copy(place: Tensor, offset: int) -> LateMark:
            mark = LateMark(self)
            sink = target[offset : offset + place.numel()]

            def run() -> None:
                sink.copy_(place)
                mark.reach()

            self.waiting.append(run)
            return mark

        return copy

    def step(self) -> None:
        self.asked += 1
        if self.waiting and self.asked % self.lag == 0:
            self.waiting.popleft()()

    def finish(self) -> None:
        while self.waiting:
            self.waiting.popleft()()


class LateMark(TwinMark):
    def __init__(self, copies: LateCopies) -> None:
        super().__init__()
        self._copies = copies

    def reached(self) -> bool:
        self._copies.step()
        return super().reached()


@settings(deadline=None, max_examples=60)
@given(
    size=st.integers(1, 4096), items=st.lists(st.integers(0, 9000), max_size=30), lag=st.integers(1, 4),
)  # fmt: skip
def test_whatever_is_sent_arrives_however_late_the_copies_are(size: int, items: list[int], lag: int) -> None:
    copies, ring = LateCopies(lag), PinnedRing(torch.empty(size, dtype=torch.uint8))
    sent = [(numbered(n, index), torch.zeros(n, dtype=torch.uint8)) for index, n in enumerate(items)]
    for source, target in sent:
        # A tiny ring would need thousands of pieces for a large item; that is slow, not wrong.
        ring.send(source[: size * 16], copies.start(target[: size * 16]))
    copies.finish()
    for source, target in sent:
        assert torch.equal(source[: size * 16], target[: size * 16])


def test_a_place_is_not_written_before_its_copy_is_done() -> None:
    streams = TwinStreams()
    ring = PinnedRing(streams.pinned(4096))
    targets = [streams.target(torch.Size([1024]), torch.uint8) for _ in range(6)]
    sources = [numbered(1024, seed) for seed in range(6)]
    streams.inward.gate.clear()
    sender = threading.Thread(target=lambda: [
        ring.send(source, lambda place, _at, target=target: streams.copy_in(target, place))
        for source, target in zip(sources, targets, strict=True)
    ], daemon=True)  # fmt: skip
    sender.start()
    wait_until(lambda: streams.log.count("in queued") == 4)  # the ring is full
    sender.join(0.1)
    assert sender.is_alive()
    assert streams.log == ["in queued"] * 4
    streams.inward.gate.set()
    sender.join(20)
    assert not sender.is_alive()
    wait_until(lambda: streams.log.count("in done") == 6)
    assert all(map(torch.equal, sources, targets))
    streams.close()


def test_an_item_larger_than_the_ring_goes_in_pieces() -> None:
    streams = TwinStreams()
    ring = PinnedRing(streams.pinned(1000))
    source, target = numbered(10_001, 1), torch.zeros(10_001, dtype=torch.uint8)
    mark = ring.send(source, lambda place, at: streams.copy_in(target[at : at + place.numel()], place))
    assert mark is not None
    mark.wait()
    assert torch.equal(source, target)
    assert streams.pinned_bytes() == 1000
    streams.close()


def test_a_copy_that_never_ends_is_a_hung_device() -> None:
    streams = TwinStreams()
    streams.inward.gate.clear()
    ring = PinnedRing(streams.pinned(256), wait_seconds=0.05)
    target = torch.zeros(256, dtype=torch.uint8)
    with pytest.raises(DeviceHung) as caught:
        ring.send(numbered(256, 1), lambda place, at: streams.copy_in(target[at : at + place.numel()], place))
    assert is_device_lost(caught.value)
    streams.close()


def test_memory_that_cannot_be_pinned_is_halved_and_then_given_up() -> None:
    half = open_ring(TwinStreams(pinnable=5 * MIB).pinned, 8 * MIB)
    assert half is not None
    assert half.nbytes == 4 * MIB
    assert open_ring(TwinStreams(pinnable=1000).pinned, 8 * MIB) is None


def test_a_refused_pin_is_no_lost_device() -> None:
    for error in (
        torch.AcceleratorError("CUDA error: out of memory"),
        torch.OutOfMemoryError("no"),
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"),
    ):
        assert is_out_of_memory(error)
        assert not is_device_lost(error)
    assert not is_out_of_memory(torch.AcceleratorError("CUDA error: an illegal memory access"))
