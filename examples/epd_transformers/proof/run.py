"""Runs every case through the three processes, cold and from the cache, and through transformers alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from epd.stack.parts import StackOptions
from epd.stack.stack import Stack
from examples.epd_transformers.pair import Answer, EnginePair
from examples.epd_transformers.proof.cases import LIMIT, SPEECH, VISION, Case
from examples.epd_transformers.proof.checkpoints import make_qwen2_5_vl, make_qwen3_vl
from examples.epd_transformers.proof.colocated import ColocatedQwen, ColocatedWhisper, Generated

#: Seconds for one answer.
ANSWER_TIMEOUT = 120.0


@dataclass(frozen=True)
class Proof:
    """The result of a case: tokens of each sequence, first ``cold`` and then ``again``, and their texts."""

    case: Case
    expected: tuple[Generated, ...]
    cold: list[list[int]]
    again: list[list[int]]
    cached: tuple[list[bool], list[bool]]
    texts: list[str]

    @property
    def is_equal(self) -> bool:
        """Whether both runs gave the tokens of ``generate()``."""
        wanted = [one.tokens for one in self.expected]
        return self.cold == wanted and self.again == wanted

    @property
    def was_cold_first(self) -> bool:
        """Whether the first run found only the known embeddings in the cache, and the second run all."""
        first, second = self.cached
        return sum(first) == self.case.known and all(second)


def prove(folder: Path, weights: Path, cases: Sequence[Case]) -> Iterator[Proof]:
    """Start the processes and run the cases one by one. ``weights`` is the folder of whisper-tiny.en."""
    checkpoints = {SPEECH: weights}
    for make, model in zip((make_qwen2_5_vl, make_qwen3_vl), VISION, strict=True):
        if any(case.model == model for case in cases):
            checkpoints[model] = folder / model
            make(checkpoints[model])
    expected = _Expected(checkpoints)
    options = StackOptions(
        config=_write_config(folder, checkpoints),
        data_dir=folder / "stack",
        downloads=4,
        decode_processes=1,
        overrides={"EPD_TORCH_THREADS": "1"},
    )
    with Stack(options) as stack:
        stack.wait_ready()
        kv = stack.media_dir / "kv"  # in shared memory; removed with the stack
        kv.mkdir()
        with EnginePair(epd=stack.api_url, kv=kv, checkpoints=checkpoints) as pair:
            for case in cases:
                yield _prove(case, pair, expected)


def _prove(case: Case, pair: EnginePair, expected: Callable[[Case], tuple[Generated, ...]]) -> Proof:
    (first, cold), (second, again) = (_answers(pair.ask(case.request(run))) for run in ("cold", "again"))
    return Proof(
        case=case,
        expected=expected(case),
        cold=cold["tokens"],
        again=again["tokens"],
        cached=(first["cached"], second["cached"]),
        texts=again["texts"],
    )


def _answers(both: tuple[Future[Answer], Future[Answer]]) -> tuple[Answer, Answer]:
    prefill, decode = both
    return prefill.result(ANSWER_TIMEOUT), decode.result(ANSWER_TIMEOUT)


class _Expected:
    """The answers of transformers alone; each model is loaded once."""

    def __init__(self, checkpoints: dict[str, Path]) -> None:
        seeing = [model for model in VISION if model in checkpoints]
        self._qwens = {model: ColocatedQwen(checkpoints[model]) for model in seeing}
        self._whisper = ColocatedWhisper(checkpoints[SPEECH])

    def __call__(self, case: Case) -> tuple[Generated, ...]:
        vision = [self._qwens[case.model].generate(case.parts, LIMIT)] if case.model in VISION else []
        return (*vision, *(self._whisper.generate(audio, LIMIT) for audio in case.audios))


def _write_config(folder: Path, checkpoints: dict[str, Path]) -> Path:
    """Write an epd.toml with an encoder and a model for each checkpoint, under the same name."""
    lines = [f'default_model = "{SPEECH}"']
    for name, path in checkpoints.items():
        lines += [
            f"[encoders.{name}]",
            f'family = "{name}"',
            f'path = "{path.resolve()}"',
            'dtype = "float32"',
        ]
        lines += [f"[models.{name}]", f'audio = "{SPEECH}"']
        lines += [f'{type_} = "{name}"' for type_ in ("image", "video") if name in VISION]
    config = folder / "epd.toml"
    config.write_text("\n".join(lines), "utf-8")
    return config
