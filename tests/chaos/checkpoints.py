"""The encoders of a chaos stack: small random checkpoints, and a config that names each of them twice.

``eye`` and ``ear`` take milliseconds; ``slow`` takes long enough that a kill meets a running batch. Each has
a twin of the same weights under another name, so under other keys: what the twin makes of the same media on a
calm stack is what the first one has to have made in the storm.
"""

from __future__ import annotations

from pathlib import Path

from gpu_worker.encoders.image.dinov2 import Dinov2Shape, Dinov2Tower
from tests.unit.encoders.tiny_checkpoints import DINOV2, tiny_folder, write_checkpoint
from tests.unit.encoders.tiny_tensors import random_state

MIXED_MODEL, SLOW_MODEL = "mixed", "slow"
TWIN = "-again"

_ENCODER = """
[encoders.{name}]
family = "{family}"
path = "{path}"
dtype = "float32"
device = "cpu"
"""

_MODELS = """
[models.mixed{twin}]
image = "eye{twin}"
video = "eye{twin}"
audio = "ear{twin}"

[models.slow{twin}]
image = "slow{twin}"
"""


def write_config(folder: Path) -> Path:
    """Write the checkpoints and ``epd.toml`` into a folder; returns the config's path."""
    paths = {
        "eye": ("dinov2", tiny_folder("dinov2", folder)),
        "ear": ("whisper", tiny_folder("whisper", folder)),
        "slow": ("dinov2", _slow_dinov2(folder / "slow")),
    }
    text = f'default_model = "{MIXED_MODEL}"\n'
    for twin in ("", TWIN):
        for name, (family, path) in paths.items():
            text += _ENCODER.format(name=name + twin, family=family, path=path)
        text += _MODELS.format(twin=twin)
    config = folder / "epd.toml"
    config.write_text(text, encoding="utf-8")
    return config


def _slow_dinov2(folder: Path) -> Path:
    width, layers = 256, 8
    shape = Dinov2Shape(
        width=width, layers=layers, heads=4, hidden=2 * width, patch=14, trained_grid=37, epsilon=1e-6,
        gated=False, qkv_bias=True,
    )  # fmt: skip
    config = {**DINOV2, "hidden_size": width, "num_hidden_layers": layers}
    return write_checkpoint(folder, config, random_state(Dinov2Tower(shape), ""))
