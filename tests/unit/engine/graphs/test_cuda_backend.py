"""How CUDA graphs are captured: the stream, the memory pool, and what a failed capture leaves."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpu_worker.encoders.base import GraphForm, SegmentRule
from gpu_worker.engine.graphs import cuda_graph
from gpu_worker.engine.graphs.cuda_graph import CudaBackend


class Stand:
    """``torch.cuda`` as far as captures use it; as there, a failed capture does not restore its stream."""

    def __init__(self) -> None:
        pools = itertools.count()
        self.on = "compute"
        self.captures: list[tuple[object, str]] = []
        self.calls: list[str] = []
        self.released = 0
        stand = self

        class Stream:
            def __init__(self, _device: torch.device | None = None, name: str = "side") -> None:
                self.name = name

            def wait_stream(self, other: Stream) -> None:
                stand.calls.append(f"{self.name} after {other.name}")

        class Graph:
            def replay(self) -> None:
                stand.calls.append("replay")

            def reset(self) -> None:
                stand.released += 1

        class Capture:
            def __init__(
                self, _graph: Graph, *, pool: object, stream: Stream, capture_error_mode: str
            ) -> None:
                self.pool, self.stream = pool, stream
                assert capture_error_mode == "thread_local"

            def __enter__(self) -> None:
                self.before, stand.on = stand.on, self.stream.name

            def __exit__(self, kind: object, *_: object) -> None:
                if kind is not None:
                    raise RuntimeError("operation failed due to a previous error during capture")
                stand.captures.append((self.pool, stand.on))
                stand.on = self.before

        self.namespace = SimpleNamespace(
            Stream=Stream,
            CUDAGraph=Graph,
            graph=Capture,
            graph_pool_handle=lambda: next(pools),
            device=lambda _device: nullcontext(),
            current_stream=lambda: Stream(name=self.on),
            stream=self.stream,
        )

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, self.on = self.on, stream.name
        try:
            yield
        finally:
            self.on = before


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch) -> Stand:
    stand = Stand()
    names = {name: getattr(torch, name) for name in ("bfloat16", "float16", "float32")}
    monkeypatch.setattr(cuda_graph, "torch", SimpleNamespace(cuda=stand.namespace, **names))
    return stand


def test_a_capture_runs_on_its_own_stream_after_two_warm_ups(stand: Stand) -> None:
    backend = CudaBackend(torch.device("cuda:1"))
    ran: list[str] = []

    def call() -> torch.Tensor:
        ran.append(stand.on)
        return torch.ones(2)

    capture = backend.capture(call)
    assert ran == ["side"] * 3
    assert stand.captures == [(0, "side")]
    assert stand.calls == ["side after compute", "compute after side"]
    assert stand.on == "compute"
    assert torch.equal(capture.replay(), torch.ones(2))
    assert stand.calls[-1] == "replay"
    capture.release()
    assert stand.released == 1


def test_a_failed_capture_leaves_the_thread_its_stream_and_the_next_one_its_pool(stand: Stand) -> None:
    backend = CudaBackend(torch.device("cuda:0"))
    tries = itertools.count(1)

    def fails_while_captured() -> torch.Tensor:
        if next(tries) == 3:
            raise torch.OutOfMemoryError("no")
        return torch.ones(1)

    with pytest.raises(RuntimeError, match="previous error during capture"):
        backend.capture(fails_while_captured)
    assert stand.on == "compute"
    backend.capture(lambda: torch.ones(1))
    backend.capture(lambda: torch.ones(1))
    assert stand.captures == [(1, "side"), (1, "side")]


def test_packed_rows_are_captured_in_half_precision_alone(stand: Stand) -> None:
    backend = CudaBackend(torch.device("cuda:0"))
    packed = GraphForm(units="rows", segments={"o": SegmentRule(lengths="l", longest=None, typical=1)})
    plain = GraphForm(units="images")
    takes = {dtype: (backend.takes(plain, dtype), backend.takes(packed, dtype)) for dtype in (
        torch.float32, torch.bfloat16, torch.float16,
    )}  # fmt: skip
    assert takes == {
        torch.float32: (True, False), torch.bfloat16: (True, True), torch.float16: (True, True),
    }  # fmt: skip
