"""What the demo ingests: the files of ``examples/media``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

MEDIA = Path(__file__).parents[1] / "examples" / "media"
QUERY = "query.jpg"
CLIP = "launch.mp4"
SOUND = "speech.ogg"
SERVED = "galaxies.jpg"  #: handed in as a URL; the demo's own server has it


@dataclass(frozen=True)
class Sample:
    """One item of the demo: its name in the table, its media type, and a path or URL for the client."""

    name: str
    type: str
    source: str

    def as_item(self) -> dict[str, str]:
        """The item as ``epd.client`` takes it."""
        kind = "url" if self.source.startswith("http://") else "path"
        return {"id": self.name, "type": self.type, kind: self.source}


def demo_samples(server_url: str) -> list[Sample]:
    """Five photos and one by URL, a video with speech and a sound file, in the order of the table."""
    photos = ["astronaut.jpg", "cat.jpg", "coffee.jpg", "rocket.jpg", QUERY]
    samples = [Sample(name, "image", str(MEDIA / name)) for name in photos]
    samples.append(Sample(SERVED, "image", f"{server_url}/{SERVED}"))
    samples.append(Sample(CLIP, "video", str(MEDIA / CLIP)))
    samples.append(Sample(SOUND, "audio", str(MEDIA / SOUND)))
    return samples


def reference_texts() -> dict[str, str]:
    """What is said in the clips, by file name."""
    texts: dict[str, str] = json.loads((MEDIA / "REFERENCES.json").read_text("utf-8"))
    return texts
