"""A running stack, as ``epd up`` starts it, whose GPU worker has a simulated device or a real encoder."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.cli import folder_in_memory
from bench.encoder.site.costs import Meter
from bench.encoder.site.device import CONFIG, POOL, DeviceModel
from bench.encoder.site.media import Media
from bench.engine.rig import REALISTIC, load_random
from epd.settings import child_environment
from epd.stack.parts import StackOptions
from epd.stack.process import Child, Spec
from epd.stack.stack import Stack

_GPU = "gpu"
_STOP_SECONDS = 10.0
#: Celery reads this when it is first imported.
_POOL = {"CELERY_CUSTOM_WORKER_POOL": "gpu_worker.pool.batch_pool:BatchPool"}

#: The config file of a stack with the real encoder: DINOv2-small with random weights, in float32.
_REAL_CONFIG = """
default_model = "dinov2-small"
[encoders.dinov2-small]
family = "dinov2"
path = "{path}"
dtype = "float32"
[models.dinov2-small]
image = "dinov2-small"
"""


@dataclass(frozen=True, slots=True)
class Site:
    """A running stack that may fetch from ``media``. ``worker`` is the GPU worker of a simulated device."""

    stack: Stack
    media: Media
    folder: Path
    worker: Child | None = None

    @property
    def port(self) -> int:
        """The port of the API."""
        return int(self.stack.api_url.rpartition(":")[2])

    def parts(self) -> dict[str, int]:
        """Process ids by part of the stack.

        Raises:
            RuntimeError: a part is down, or was restarted.
        """
        found = {name: self.stack.pid(name) for name in self.stack.names()}
        restarted = [name for name in found if self.stack.restarts(name)]
        if self.worker is not None:
            found[_GPU] = self.worker.pid
        alive = {name: pid for name, pid in found.items() if pid is not None}
        if restarted or len(alive) < len(found):
            raise RuntimeError(f"down: {sorted(found.keys() - alive.keys())}; restarted: {restarted}")
        return alive

    def meter(self) -> Meter:
        """Measures what the stack costs from now on."""
        return Meter(self.parts(), self.stack.settings["EPD_BROKER_URL"])


@contextmanager
def running_site(
    media: Media,
    device: DeviceModel | None = None,
    settings: Mapping[str, str] | None = None,
    real_config: str | None = None,
) -> Iterator[Site]:
    """A ready stack; ``device`` None is a real encoder, by default one of DINOv2-small's size.

    ``settings`` are EPD_* settings of every process. ``real_config`` is the text of a config file.
    """
    with folder_in_memory("epd-bench-") as folder:
        config = folder / "epd.toml"
        config.write_text(CONFIG if device else real_config or _real_config(folder), encoding="utf-8")
        options = StackOptions(
            config=config,
            data_dir=folder / "data",
            gpu_workers=0 if device else 1,
            overrides={"EPD_FETCH_ALLOW_HOSTS": media.address, **(settings or {})},
        )
        with Stack(options) as stack, _simulated_worker(stack, device) as worker:
            stack.wait_ready()
            yield Site(stack, media, folder, worker)


def _real_config(folder: Path) -> str:
    load_random(REALISTIC, folder)
    return _REAL_CONFIG.format(path=folder / REALISTIC.name)


@contextmanager
def _simulated_worker(stack: Stack, device: DeviceModel | None) -> Iterator[Child | None]:
    """The GPU worker that the stack itself has none of; None without a device model."""
    if device is None:
        yield None
        return
    argv = [sys.executable, "-m", "bench.encoder.site.gpu_worker_process"]
    argv += ["--batch-ms", str(device.batch_ms), "--item-ms", str(device.item_ms)]
    environment = child_environment({**stack.settings, **POOL})
    worker = Child(Spec(_GPU, argv, stop_order=0), stack.options.data_dir / "logs/gpu.log", environment)
    worker.start()
    try:
        yield worker
    finally:
        worker.signal(worker.spec.stop_signal)
        worker.wait(_STOP_SECONDS)
        worker.kill_group()
