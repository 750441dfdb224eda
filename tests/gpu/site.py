"""Where a check of the GPU tests runs: on a CUDA device, or on the processor with the twin of captures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from bench.gpu.twin_graphs import TwinBackend
from epd.config import EncoderConfig
from gpu_worker.encoders.base import Encoder, Inputs
from gpu_worker.encoders.registry import load_encoder
from gpu_worker.engine.forward import EagerRunner, Runner
from gpu_worker.engine.graphs.cuda_graph import Call, CudaBackend, GraphBackend
from tests.gpu.batches import batch_of
from tests.unit.encoders.tiny_checkpoints import tiny_folder
from tests.unit.engine.graphs.graph_kit import EvenBackend

#: Windows of 30 s: the bounded memory has no room for so many at once, and has room for a quarter of them.
_TOO_MANY_ON_CUDA, _TOO_MANY_ON_CPU = 16, 4

#: How a device comes to have too little memory: gives the runner to use until then.
MemoryBound = Callable[[Encoder], AbstractContextManager[Runner]]


@dataclass(frozen=True, kw_only=True)
class Site:
    """A device with its captures. ``even_backend`` chooses replays always; ``backend`` times both ways.

    ``little_memory`` has no room for ``too_many_windows`` of speech at once.
    """

    device: str
    dtype: str
    even_backend: Callable[[], GraphBackend]
    backend: Callable[[], GraphBackend]
    little_memory: MemoryBound
    too_many_windows: int

    def encoder(self, family: str, folder: Path, *, dtype: str | None = None) -> Encoder:
        """A tiny encoder of this family on the device."""
        path = tiny_folder(family, folder)
        config = EncoderConfig(family=family, path=path, dtype=dtype or self.dtype, device=self.device)
        return load_encoder(f"tiny-{family}", config)

    def assert_close(self, rows: Tensor, expected: Tensor, what: object = "") -> None:
        """Rows of the same weights by other kernels: only rounding of the dtype may differ."""
        assert rows.shape == expected.shape, what
        assert torch.isfinite(rows).all(), what
        if rows.dtype == torch.float32 and self.device == "cpu":
            torch.testing.assert_close(rows, expected, rtol=1e-5, atol=1e-5)
        similarity = torch.cosine_similarity(rows.float(), expected.float(), dim=-1)
        assert similarity.min() >= 0.999, (what, float(similarity.min()))
        worst = (rows.float() - expected.float()).abs().max() / expected.float().abs().max()
        assert worst <= 0.03, (what, float(worst))


class EvenCudaBackend(CudaBackend):
    """Every call takes no time, so that a replay is always chosen."""

    def seconds(self, call: Call) -> float:
        return 0.0


class ForgetfulRunner(EagerRunner):
    """Has no memory for more windows than the bound has room for."""

    def run(self, encoder: Encoder, inputs: Inputs) -> Tensor:
        if inputs.tensors["mel"].shape[0] > _TOO_MANY_ON_CPU // 4:
            raise torch.OutOfMemoryError("the twin's memory is full")
        return super().run(encoder, inputs)


@contextmanager
def _no_memory_on_cpu(encoder: Encoder) -> Iterator[Runner]:
    yield ForgetfulRunner()


@contextmanager
def _no_memory_on_cuda(encoder: Encoder) -> Iterator[Runner]:
    """Bound torch's memory to between what few windows reserve and what too many cannot do without."""
    device = torch.device(encoder.card.device)
    few, _ = _memory_for(encoder, _TOO_MANY_ON_CUDA // 4)
    _, many = _memory_for(encoder, _TOO_MANY_ON_CUDA)
    assert many > few
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction((few + many) / 2 / total, device)
    try:
        yield EagerRunner()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)


def _memory_for(encoder: Encoder, windows: int) -> tuple[int, int]:
    """The most bytes that torch reserves, and that tensors take, while a batch is preprocessed and run."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    encoder.forward(batch_of(encoder, windows, seconds=30))
    torch.cuda.synchronize()
    most = torch.cuda.max_memory_reserved(), torch.cuda.max_memory_allocated()
    torch.cuda.empty_cache()
    return most


def cuda_site() -> Site:
    """The first CUDA device, in bfloat16 as a worker uses it."""
    device = torch.device("cuda:0")
    return Site(
        device="cuda:0", dtype="bfloat16", even_backend=lambda: EvenCudaBackend(device),
        backend=lambda: CudaBackend(device), little_memory=_no_memory_on_cuda,
        too_many_windows=_TOO_MANY_ON_CUDA,
    )  # fmt: skip


def twin_site(dtype: str = "float32") -> Site:
    """The processor, which stands in for a GPU so that the checks themselves are checked."""
    torch.set_num_threads(1)
    return Site(
        device="cpu", dtype=dtype, even_backend=EvenBackend, backend=TwinBackend,
        little_memory=_no_memory_on_cpu, too_many_windows=_TOO_MANY_ON_CPU,
    )  # fmt: skip
