"""Makes the demo's model folders, once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from demo.weights import dinov2, whisper
from demo.weights.folder import PackagedFile, publish_folder, read_stamp

#: Raised when a converter writes other bytes than before, so that old folders are made anew.
REVISION = "1"


@dataclass(frozen=True)
class DemoModel:
    """A model folder that can be made from a packaged file."""

    name: str
    source: PackagedFile
    fill: Callable[[Path], None]

    def stamp(self) -> dict[str, str]:
        """What its folder's ``SOURCE.json`` holds."""
        return {"package": self.source.package, "sha256": self.source.sha256, "revision": REVISION}


MODELS = (
    DemoModel("whisper-tiny.en", whisper.MODEL, whisper.fill),
    DemoModel("dinov2-small", dinov2.MODEL, dinov2.fill),
)


def ensure_weights(root: Path, *, say: Callable[[str], None]) -> dict[str, Path]:
    """The model folders under ``root`` by name; the missing ones are made, a few seconds each.

    Raises:
        SettingsError: a package with weights is missing or not the pinned one.
    """
    folders = {model.name: root / model.name for model in MODELS}
    for model in MODELS:
        if read_stamp(folders[model.name]) != model.stamp():
            say(f"converting {model.name} from {model.source.package}")
        publish_folder(folders[model.name], model.stamp(), model.fill)
    return folders
