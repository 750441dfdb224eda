"""``epd.client.prompt.position_delta`` against ``get_rope_index`` of transformers, on random prompts."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from epd.client.prompt import position_delta
from epd.contracts.embedding import Metadata
from epd.contracts.errors import InvalidRequest
from epd.contracts.handoff import Placed
from epd.contracts.media import Modality
from tests.parity.published_qwen import small_model

pytestmark = pytest.mark.parity

FAMILIES = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"]
TOKENS_PER_SECOND = {"qwen2_5_vl": 4.0}


@dataclass
class Prompt:
    """A prompt in the making: transformers' token types, and our items."""

    types: list[int] = field(default_factory=list)
    placed: list[Placed] = field(default_factory=list)
    metadata: list[Metadata] = field(default_factory=list)

    def text(self, tokens: int) -> None:
        self.types += [0] * tokens

    def run(self, kind: int, tokens: int) -> tuple[int, int]:
        self.types += [kind] * tokens
        return len(self.types) - tokens, tokens

    def grids(self, modality: Modality) -> torch.Tensor | None:
        grids = [known.grid_thw for known in self.metadata if known.modality is modality]
        return torch.tensor(grids) if grids else None


def known_item(modality: Modality, grid: tuple[int, int, int], seconds: float | None = None) -> Metadata:
    return Metadata(
        embedding_key="a" * 64, content_digest="b" * 64, modality=modality, encoder="eye", dtype="float32",
        token_count=grid[0] * grid[1] * grid[2] // 4, hidden=8, grid_thw=grid, merge_size=2,
        second_per_grid_ts=seconds,
    )  # fmt: skip


def random_prompt(chooser: random.Random, family: str) -> Prompt:
    prompt = Prompt()
    prompt.text(chooser.randint(0, 9))
    for _ in range(chooser.randint(1, 5)):
        h, w = 2 * chooser.randint(1, 20), 2 * chooser.randint(1, 20)
        cell = h * w // 4
        if chooser.random() < 0.5:
            offset, length = prompt.run(1, cell)
            prompt.placed.append(Placed(offset=offset, length=length))
            prompt.metadata.append(known_item(Modality.IMAGE, (1, h, w)))
        else:
            _add_video(prompt, chooser, family, (chooser.randint(1, 40), h, w))
        prompt.text(chooser.randint(1, 9))  # vision_start and vision_end stand between two items at least
    del prompt.types[len(prompt.types) - chooser.randint(0, 1) :]
    return prompt


def _add_video(prompt: Prompt, chooser: random.Random, family: str, grid: tuple[int, int, int]) -> None:
    cell = grid[1] * grid[2] // 4
    if family != "qwen3_vl":
        offset, length = prompt.run(2, grid[0] * cell)
        prompt.placed.append(Placed(offset=offset, length=length))
    else:
        spans = []
        for _ in range(grid[0]):
            prompt.text(chooser.randint(1, 4))
            spans.append(prompt.run(2, cell))
        length = grid[0] * cell
        place = Placed(offset=spans[0][0], length=length, spans=tuple(spans) if len(spans) > 1 else None)
        prompt.placed.append(place)
    seconds = chooser.choice([0.1, 0.5, 1 / 3, 1.0, 2.0, 7.77])
    prompt.metadata.append(known_item(Modality.VIDEO, grid, seconds))


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> tuple[str, Any]:
    return request.param, small_model(request.param).model


def test_the_delta_is_that_of_transformers_on_300_random_prompts(family: tuple[str, Any]) -> None:
    name, model = family
    chooser = random.Random(17)
    for number in range(300):
        prompt = random_prompt(chooser, name)
        tokens = torch.ones(1, len(prompt.types), dtype=torch.long)
        options: dict[str, Any] = {}
        videos = [known for known in prompt.metadata if known.modality is Modality.VIDEO]
        if name == "qwen2_5_vl" and videos:
            options["second_per_grid_ts"] = torch.tensor([known.second_per_grid_ts for known in videos])
        _, deltas = model.get_rope_index(
            tokens,
            torch.tensor([prompt.types]),
            image_grid_thw=prompt.grids(Modality.IMAGE),
            video_grid_thw=prompt.grids(Modality.VIDEO),
            **options,
        )
        ours = position_delta(
            prompt.placed,
            prompt.metadata,
            prompt_tokens=len(prompt.types),
            tokens_per_second=TOKENS_PER_SECOND.get(name),
        )
        assert ours == int(deltas[0, 0]), (name, number)


def test_the_small_model_has_the_published_tokens_per_second(family: tuple[str, Any]) -> None:
    name, model = family
    assert getattr(model.config.vision_config, "tokens_per_second", None) == TOKENS_PER_SECOND.get(name)


def test_audio_and_items_without_placeholders_turn_nothing() -> None:
    audio = known_item(Modality.AUDIO, (1, 2, 8)).model_copy(update={"grid_thw": None})
    image = known_item(Modality.IMAGE, (1, 4, 4))
    placed = [Placed(offset=0, length=4), Placed(offset=9, length=4), Placed(offset=9, length=0)]
    assert position_delta(placed, [audio, image, image], prompt_tokens=20) == -2


def test_a_grid_that_does_not_fit_its_placeholders_is_refused() -> None:
    image = known_item(Modality.IMAGE, (1, 4, 4))
    with pytest.raises(InvalidRequest, match="takes 4 placeholders, not 3"):
        position_delta([Placed(offset=0, length=3)], [image], prompt_tokens=9)
    bare = image.model_copy(update={"grid_thw": None})
    with pytest.raises(InvalidRequest, match="no grid"):
        position_delta([Placed(offset=0, length=4)], [bare], prompt_tokens=9)
