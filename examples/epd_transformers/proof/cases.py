"""The prompts for both sides: every kind of medium, with embeddings that no earlier case of a model has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

MEDIA = Path(__file__).parents[2] / "media"
SPEECH = "whisper"
VISION = ("qwen2_5_vl", "qwen3_vl")
#: The most tokens of an answer; the longer sentence of the sample speech has 27.
LIMIT = 28


@dataclass(frozen=True)
class Case:
    """A prompt for a model: text and media, as ``prefill`` takes it.

    ``audios`` are the files with its audio sequences; ``known`` is how many of its embeddings an earlier case
    has made.
    """

    name: str
    model: str
    parts: tuple[str | dict[str, Any], ...]
    audios: tuple[Path, ...] = ()
    known: int = 0

    def request(self, run: str) -> dict[str, Any]:
        """The request of this case; ``run`` makes its id unique."""
        request_id = f"{self.model}-{self.name}-{run}".replace(" ", "-")
        return {"request_id": request_id, "model": self.model, "parts": self.parts, "limit": LIMIT}


def all_cases() -> list[Case]:
    """All cases, in an order in which each first run is cold, except for its ``known`` embeddings."""
    return [_speech(), *(case for model in VISION for case in _vision(model))]


def _speech() -> Case:
    return Case("speech", SPEECH, (_part("audio", "speech.ogg"),), (MEDIA / "speech.ogg",))


def _vision(model: str) -> list[Case]:
    clip = "launch.mp4"
    # Different rates give different frames, so no case finds the embedding of another.
    slow, slower = (_part("video", clip, audio_track="none", fps=fps) for fps in (1.5, 1.0))
    known = int(model != VISION[0])  # the clip's audio has the same encoder in both models
    three = [_part("image", f"{name}.jpg") for name in ("coffee", "rocket", "astronaut")]
    return [
        Case("image", model, ("What is this? ", _part("image", "cat.jpg"), " It is ")),
        Case("several images", model, ("Compare ", *three[:2], " with ", three[2], ". ")),
        Case("video", model, ("Describe ", slow, ". ")),
        Case("video with sound", model, ("Retell ", _part("video", clip), ". "), (MEDIA / clip,), known),
        Case("image and video", model, (_part("image", "query.jpg"), " or ", slower, "? ")),
    ]


def _part(type_: str, name: str, **options: object) -> dict[str, Any]:
    return {"type": type_, "path": str(MEDIA / name), **({"options": options} if options else {})}
