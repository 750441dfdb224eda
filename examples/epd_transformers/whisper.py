"""Whisper's decoder, which takes epd's embeddings instead of audio."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForSpeechSeq2Seq, AutoTokenizer, EncoderDecoderCache

from examples.epd_transformers.sequence import Part, Prefilled, Tensors, cache_of, cache_tensors

#: The prefixes of the self-attention and cross-attention caches in one dictionary.
OWN, AUDIO = "own.", "audio."


class WhisperLanguage:
    """A Whisper checkpoint without its encoder. It takes one window of 30 s (1500 rows), in English."""

    def __init__(self, folder: Path) -> None:
        self._model: Any = AutoModelForSpeechSeq2Seq.from_pretrained(folder, dtype=torch.float32).eval()
        del self._model.model.encoder
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self._rules = self._model.generation_config

    @torch.inference_mode()
    def prefill(self, parts: Sequence[Part], rows: Sequence[Tensor]) -> Prefilled:
        """Prefill. The audio is not in the prompt; its keys and values are in the cross-attention cache."""
        prompt = [self._rules.decoder_start_token_id, self._rules.no_timestamps_token_id]
        (window,) = rows
        past = EncoderDecoderCache(cache_of({}), cache_of({}))
        logits = self._logits(prompt, window[None], past)
        logits[self._rules.begin_suppress_tokens] = -torch.inf
        return Prefilled(
            token=int(logits.argmax()),
            cache=cache_tensors(past.self_attention_cache, OWN)
            | cache_tensors(past.cross_attention_cache, AUDIO),
            prompt_tokens=len(prompt),
            runs=((),),
        )

    @torch.inference_mode()
    def decode(self, token: int, cache: Tensors, *, delta: int, limit: int) -> list[int]:
        """Decode token by token. Whisper has no ``delta``."""
        past, tokens = EncoderDecoderCache(cache_of(cache, OWN), cache_of(cache, AUDIO)), [token]
        no_rows = torch.empty(1, 0, self._model.config.d_model)  # a required argument, but the cache is used
        while len(tokens) < limit and tokens[-1] != self._rules.eos_token_id:
            tokens.append(int(self._logits(tokens[-1:], no_rows, past).argmax()))
        return tokens

    def _logits(self, ids: list[int], rows: Tensor, past: EncoderDecoderCache) -> Tensor:
        """The logits [vocabulary] of the next token; tokens that a transcript never has are -inf."""
        decoder = self._model.model.decoder
        out = decoder(input_ids=torch.tensor([ids]), encoder_hidden_states=rows, cache=past, use_cache=True)
        logits: Tensor = self._model.proj_out(out.last_hidden_state[0, -1])
        logits[self._rules.suppress_tokens] = -torch.inf
        return logits

    def text(self, tokens: list[int]) -> str:
        """The transcript."""
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=True)
        return text.strip()
