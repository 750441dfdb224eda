"""The calls that CUDA streams make to torch, their order and their threads, recorded by a stand-in."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from gpu_worker.engine import cuda_streams
from gpu_worker.engine.cuda_streams import CudaStreams
from gpu_worker.engine.stream_device import StreamDevice

RING = 1 << 20


class Notes:
    """``torch.cuda`` as far as the streams use it: every call is one line."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.waits: list[str] = []
        self.on = "compute"
        numbers = itertools.count()
        notes = self

        class Stream:
            def __init__(self, _device: torch.device, name: str | None = None) -> None:
                self.name = name or ("in", "out")[next(numbers)]

            def wait_event(self, event: Event) -> None:
                notes.lines.append(f"{self.name} waits for {event.name}")

            def synchronize(self) -> None:
                raise AssertionError("a stream was waited for")

        class Event:
            def __init__(self, enable_timing: bool = False) -> None:
                self.timed, self.name = enable_timing, ""

            def record(self, stream: Stream) -> None:
                self.name = f"{stream.name}-{sum(line.startswith('mark') for line in notes.lines)}"
                notes.lines.append(f"mark {self.name}{' timed' if self.timed else ''}")

            def query(self) -> bool:
                return True

            def synchronize(self) -> None:
                notes.waits.append(threading.current_thread().name)
                notes.lines.append(f"wait for {self.name}")

        self.namespace = SimpleNamespace(
            Stream=Stream,
            Event=Event,
            stream=self.stream,
            current_stream=lambda _device: Stream(_device, "compute"),
            host_memory_stats=lambda: {"allocated_bytes.current": 77},
            empty_cache=lambda: self.lines.append("empty cache"),
        )

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, self.on = self.on, stream.name
        yield
        self.on = before


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Notes:
    notes = Notes()
    empty, copy = torch.empty, Tensor.copy_

    def noted_empty(*shape: Any, pin_memory: bool = False, **fields: Any) -> Tensor:
        notes.lines.append(f"{'pinned' if pin_memory else 'memory'} on {notes.on}")
        return empty(*shape, **fields)

    def noted_copy(self: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
        if non_blocking:
            notes.lines.append(f"copy on {notes.on}")
        return copy(self, source)

    monkeypatch.setattr(
        cuda_streams, "torch", SimpleNamespace(cuda=notes.namespace, empty=noted_empty, uint8=torch.uint8)
    )
    monkeypatch.setattr(Tensor, "copy_", noted_copy)
    monkeypatch.setattr(
        Tensor, "record_stream", lambda _self, stream: notes.lines.append(f"used on {stream.name}")
    )
    return notes


def test_the_order_of_a_batch(notes: Notes) -> None:
    device = StreamDevice(CudaStreams(torch.device("cpu")), RING)
    host = torch.arange(6, dtype=torch.uint8).view(2, 3)
    first, second = device.upload(host), device.upload(host + 1)
    assert notes.lines == [
        "pinned on compute",
        *("memory on in", "copy on in", "mark in-0"),
        *("memory on in", "copy on in", "mark in-1"),
    ]
    notes.lines.clear()
    device.await_uploads([second])
    assert notes.lines == ["compute waits for in-1", "used on compute"]
    notes.lines.clear()
    ready = device.stamp()
    assert notes.lines == ["mark compute-0 timed"]
    assert notes.waits == []
    rows = device.download(first, ready)
    assert notes.lines[1:] == [
        "pinned on compute",
        "out waits for compute-0",
        "copy on out",
        "used on out",
        "mark out-1",
        "wait for out-1",
    ]
    assert len(notes.waits) == 1
    assert torch.equal(rows, host)
    assert device.staging_bytes() == 77


def test_each_upload_is_awaited_once_and_alone(notes: Notes) -> None:
    device = StreamDevice(CudaStreams(torch.device("cpu")), RING)
    uploads = [device.upload(torch.zeros(9)) for _ in range(3)]
    notes.lines.clear()
    device.await_uploads(uploads[:2])
    device.await_uploads(uploads[:2])
    assert [line for line in notes.lines if "waits" in line] == [
        "compute waits for in-0",
        "compute waits for in-1",
    ]
    device.free_cache()
    assert notes.lines[-1] == "empty cache"
