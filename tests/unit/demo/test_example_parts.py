"""The parts of examples/epd_transformers that need no stack: prompts, caches, placeholders, failures."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from epd.contracts.embedding import Metadata
from epd.contracts.errors import EncodeFailed
from epd.contracts.job import State
from epd.contracts.media import Modality
from epd.contracts.responses import ItemAnswer, PartAnswer
from examples.epd_transformers.engine import serve
from examples.epd_transformers.prefill import handoff_of, prompts_of
from examples.epd_transformers.qwen_prompt import PADS, Prompt, model_inputs, step_times
from examples.epd_transformers.sequence import Prefilled, cache_of, cache_tensors, save_caches, take_caches

KEY = "ab" * 32
PAD, BEGIN, END = 1001, 1002, 1003


class Letters:
    """A tokenizer of characters."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        special = {"<|vision_start|>": BEGIN, "<|vision_end|>": END}
        return [special[text]] if text in special else [ord(letter) for letter in text]

    def convert_tokens_to_ids(self, token: str) -> int:
        assert token in PADS.values()
        return PAD


def known(modality: Modality, rows: int, grid: tuple[int, int, int] | None = None, **more: Any) -> Metadata:
    merge = 2 if grid else None
    return Metadata(
        embedding_key=KEY, content_digest="", modality=modality, encoder="e", dtype="float32",
        token_count=rows, hidden=8, grid_thw=grid, merge_size=merge, **more,
    )  # fmt: skip


IMAGE = known(Modality.IMAGE, 6, (1, 4, 6))
VIDEO = known(Modality.VIDEO, 8, (2, 4, 4), video_timestamps=(0.0, 0.5, 1.0), second_per_grid_ts=1.0)
AUDIO = known(Modality.AUDIO, 1500)


def item(metadata: Metadata | None, *tracks: Metadata) -> ItemAnswer:
    audios = tuple(PartAnswer(type=Modality.AUDIO, state=State.DONE, metadata=one) for one in tracks)
    kind = metadata.modality if metadata else Modality.IMAGE
    return ItemAnswer(index=0, type=kind, state=State.DONE, metadata=metadata, tracks=audios)


def test_an_image_is_a_placeholder_a_row_between_its_marks() -> None:
    prompt = Prompt(Letters(), ["ab", IMAGE, "c"], family="qwen2_5_vl")
    assert prompt.ids == [ord("a"), ord("b"), BEGIN, *[PAD] * 6, END, ord("c")]
    assert prompt.runs == [((3, 6),)]
    assert prompt.types == [0, 0, 0, *[1] * 6, 0, 0]


def test_a_video_is_one_run_for_qwen2_5_and_a_run_a_step_for_qwen3() -> None:
    assert Prompt(Letters(), [VIDEO], family="qwen2_5_vl").runs == [((1, 8),)]
    prompt = Prompt(Letters(), [VIDEO], family="qwen3_vl")
    (first, second), times = prompt.runs[0], ["<0.2 seconds>", "<1.0 seconds>"]
    assert (first, second) == ((len(times[0]) + 1, 4), (2 * len(times[0]) + 7, 4))
    assert "".join(map(chr, prompt.ids[: len(times[0])])) == times[0]
    assert step_times(VIDEO) == [0.25, 1.0]


def test_grids_go_by_type_and_times_to_qwen2_5_alone() -> None:
    prompt = Prompt(Letters(), [IMAGE, VIDEO], family="qwen2_5_vl")
    inputs = model_inputs(prompt, [IMAGE, VIDEO], family="qwen2_5_vl")
    assert inputs["image_grid_thw"].tolist() == [[1, 4, 6]]
    assert inputs["video_grid_thw"].tolist() == [[2, 4, 4]]
    assert inputs["second_per_grid_ts"].tolist() == [1.0]
    assert "second_per_grid_ts" not in model_inputs(prompt, [VIDEO], family="qwen3_vl")


def test_audio_is_passed_as_separate_sequences() -> None:
    parts = ["look ", {"type": "video"}, {"type": "audio"}]
    assert prompts_of(parts, [item(VIDEO, AUDIO), item(AUDIO)]) == [["look ", VIDEO], [AUDIO], [AUDIO]]
    assert prompts_of([{"type": "audio"}], [item(AUDIO)]) == [[AUDIO]]
    with pytest.raises(EncodeFailed):
        prompts_of([{"type": "image"}], [item(None)])


def test_the_handoff_says_where_each_row_stands() -> None:
    prompt = Prompt(Letters(), ["ab", IMAGE, VIDEO], family="qwen3_vl")
    seen = Prefilled(token=5, cache={}, prompt_tokens=len(prompt.ids), runs=tuple(prompt.runs), delta=-7)
    heard = Prefilled(token=6, cache={}, prompt_tokens=2, runs=((),))
    said = handoff_of([["ab", IMAGE, VIDEO], [AUDIO]], [seen, heard], limit=9)
    image, video, audio = said.items
    assert (image.offset, image.length, image.spans) == (3, 6, None)
    assert (video.spans, video.length) == (prompt.runs[1], 8)
    assert (audio.offset, audio.length) == (len(prompt.ids), 0)
    assert said.mrope_position_delta == -7
    assert said.extra["sequences"] == [{"language": "e", "token": 5}, {"language": "e", "token": 6}]


def test_caches_pass_through_a_file_that_is_taken_once(tmp_path: Path) -> None:
    tensors = {f"{layer}.{kind}": torch.randn(1, 2, 3, 4) for layer in range(11) for kind in ("key", "value")}
    path = tmp_path / "r.safetensors"
    save_caches(path, [tensors, {"own.0.key": torch.ones(1), "own.0.value": torch.zeros(1)}])
    first, second = take_caches(path)
    assert not list(tmp_path.iterdir())
    assert set(second) == {"own.0.key", "own.0.value"}
    again = cache_tensors(cache_of(first))
    assert all(torch.equal(again[name], tensor) for name, tensor in tensors.items())


def test_a_request_that_fails_says_so_and_is_alone(capsys: pytest.CaptureFixture[str]) -> None:
    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if request["request_id"] == "bad":
            raise EncodeFailed("no such file")
        return {"tokens": [1]}

    serve(answer, io.StringIO("".join(json.dumps({"request_id": name}) + "\n" for name in ("bad", "good"))))
    said = {line["request_id"]: line for line in map(json.loads, capsys.readouterr().out.splitlines())}
    assert said["bad"]["error"] == "EncodeFailed: no such file"
    assert said["good"]["tokens"] == [1]
    assert None in said  # it said when it was ready
