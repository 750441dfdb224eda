"""The language model of Qwen2.5-VL or Qwen3-VL, fed with epd's embeddings instead of pixels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForImageTextToText, AutoTokenizer
from transformers.models.qwen3_vl.modeling_qwen3_vl import BaseModelOutputWithDeepstackFeatures

from epd.contracts.embedding import Metadata
from examples.epd_transformers.qwen_prompt import TYPES, Prompt, model_inputs
from examples.epd_transformers.sequence import Part, Prefilled, Tensors, cache_of, cache_tensors


class QwenLanguage:
    """A Qwen-VL checkpoint without its vision tower."""

    def __init__(self, folder: Path) -> None:
        self._model: Any = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
        del self._model.model.visual  # epd provides its outputs
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self._family: str = self._model.config.model_type

    @torch.inference_mode()
    def prefill(self, parts: Sequence[Part], rows: Sequence[Tensor]) -> Prefilled:
        """Prefill up to the first token. transformers computes the positions and inserts the rows."""
        prompt = Prompt(self._tokenizer, parts, family=self._family)
        media = [part for part in parts if isinstance(part, Metadata)]
        inputs = model_inputs(prompt, media, family=self._family)
        positions, _ = self._model.model.get_rope_index(**inputs)
        out = self._model(
            **inputs,
            position_ids=positions,
            mm_encoder_outputs=self._encoded(media, rows),
            use_cache=True,
            logits_to_keep=1,
        )
        return Prefilled(
            token=int(out.logits[0, -1].argmax()),
            cache=cache_tensors(out.cache),
            prompt_tokens=len(prompt.ids),
            runs=tuple(prompt.runs),
            # Not rope_deltas: ``generate()`` continues after the last token, whose position is lower than
            # that of the last time step of a video with little text after it.
            delta=int(positions[0, 0, -1]) + 1 - len(prompt.ids),
        )

    def _encoded(self, media: Sequence[Metadata], rows: Sequence[Tensor]) -> dict[str, Any]:
        """The rows by type, as the vision tower returns them: deepstack levels separate."""
        width = self._model.config.text_config.hidden_size
        encoded = {}
        for type_ in TYPES:
            own = [row for row, medium in zip(rows, media, strict=True) if medium.modality == type_]
            if own:
                levels_first: Any = zip(*(row.split(width, dim=1) for row in own), strict=True)
                merged, *levels = levels_first
                encoded[str(type_)] = BaseModelOutputWithDeepstackFeatures(
                    pooler_output=merged, deepstack_features=levels
                )
        return encoded

    @torch.inference_mode()
    def decode(self, token: int, cache: Tensors, *, delta: int, limit: int) -> list[int]:
        """Decode token by token. Of the media only the cache and ``delta`` are needed."""
        past, tokens, end = cache_of(cache), [token], self._model.generation_config.eos_token_id
        while len(tokens) < limit and tokens[-1] != end:
            position = torch.full((3, 1, 1), past.get_seq_length() + delta)
            ids = torch.tensor([tokens[-1:]])
            out = self._model(input_ids=ids, position_ids=position, cache=past, use_cache=True)
            tokens.append(int(out.logits[0, -1].argmax()))
        return tokens

    def text(self, tokens: list[int]) -> str:
        """The text of the tokens, without special tokens."""
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=True)
        return text.strip()
