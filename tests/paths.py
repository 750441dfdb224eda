"""Folders of the repository that tests read."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
#: The demo's model folders, which ``python -m demo.weights`` makes.
WEIGHTS = ROOT / ".epd" / "models"
#: Small images, videos and audio files that ship with the repository.
MEDIA = ROOT / "examples" / "media"
