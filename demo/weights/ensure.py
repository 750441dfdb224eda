"""Creates the model folders of the demo where they are missing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from demo.weights import dinov2, whisper
from demo.weights.folder import PackagedFile, publish_folder, read_stamp

#: To be increased when a converter writes different bytes, so that old folders are replaced.
REVISION = "1"


@dataclass(frozen=True)
class DemoModel:
    """A model folder that can be created from a packaged file."""

    name: str
    source: PackagedFile
    fill: Callable[[Path], None]

    def stamp(self) -> dict[str, str]:
        """The content of ``SOURCE.json`` in its folder."""
        return {"package": self.source.package, "sha256": self.source.sha256, "revision": REVISION}


MODELS = (
    DemoModel("whisper-tiny.en", whisper.MODEL, whisper.fill),
    DemoModel("dinov2-small", dinov2.MODEL, dinov2.fill),
)


def ensure_weights(root: Path, *, say: Callable[[str], None]) -> dict[str, Path]:
    """The model folders under ``root`` by name. Missing ones are created, in a few seconds each.

    Raises:
        SettingsError: a package with weights is missing or has other bytes than expected.
    """
    folders = {model.name: root / model.name for model in MODELS}
    for model in MODELS:
        if read_stamp(folders[model.name]) != model.stamp():
            say(f"converting {model.name} from {model.source.package}")
        publish_folder(folders[model.name], model.stamp(), model.fill)
    return folders
