"""What the demo does with embeddings: transcripts, similar photos, and tables of a job.

The transcript is Encode-Prefill-Decode in its smallest form. epd made the embedding [1500, d_model] in
another process; here only the decoder of the same checkpoint runs, in transformers, without any audio sample.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.table import Table

from epd.cli.tables import add_part, parts_table
from epd.contracts.responses import ItemAnswer, JobAnswer, PartAnswer

Array = npt.NDArray[Any]
#: Whisper writes titles short, as a book does; word error rates compare the spoken word.
SPOKEN = {"mr": "mister", "mrs": "missis", "dr": "doctor"}
MAX_TOKENS = 200
WINDOW_ROWS = 1500  #: rows of whisper's encoder for 30 s


def transcribe(embedding: npt.NDArray[Any], model_folder: Path) -> str:
    """The text of ``embedding`` [1500 * windows, d_model], decoded greedily window by window.

    Raises:
        ValueError: the rows are not a whole number of windows.
    """
    rows, width = embedding.shape
    if rows % WINDOW_ROWS:
        raise ValueError(f"{rows} rows are not a whole number of {WINDOW_ROWS}-row windows")
    windows = embedding.astype(np.float32).reshape(-1, WINDOW_ROWS, width)
    return " ".join(_window_texts(windows, model_folder))


def _window_texts(windows: npt.NDArray[np.float32], model_folder: Path) -> list[str]:
    import torch
    import transformers
    from transformers.modeling_outputs import BaseModelOutput

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    kind = transformers.WhisperForConditionalGeneration
    model = kind.from_pretrained(model_folder, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_folder)
    encoded = BaseModelOutput(last_hidden_state=torch.from_numpy(windows))
    with torch.inference_mode():
        tokens = model.generate(encoder_outputs=encoded, max_new_tokens=MAX_TOKENS, do_sample=False)
    return [text.strip() for text in tokenizer.batch_decode(tokens, skip_special_tokens=True)]


def word_error_rate(reference: str, said: str) -> float:
    """Word edits from ``said`` to ``reference`` (Levenshtein), divided by the words of the reference.

    Case, punctuation and hyphens do not count. 0.0 is perfect; many added words give more than 1.0.

    Raises:
        ValueError: the reference has no word.
    """
    wanted, given = _words(reference), _words(said)
    if not wanted:
        raise ValueError("the reference has no word")
    return _edits(wanted, given) / len(wanted)


def _words(text: str) -> list[str]:
    found = re.findall(r"[a-z0-9']+", text.lower())
    return [SPOKEN.get(word, word) for word in found]


def _edits(wanted: list[str], given: list[str]) -> int:
    row = list(range(len(given) + 1))
    for index, word in enumerate(wanted, start=1):
        previous, row = row, [index]
        for column, other in enumerate(given, start=1):
            substituted = previous[column - 1] + (word != other)
            row.append(min(substituted, previous[column] + 1, row[column - 1] + 1))
    return row[-1]


def rank(query: Array, others: Mapping[str, Array]) -> list[tuple[str, float]]:
    """The names of ``others`` (each [tokens, hidden]) with their cosine to ``query``, nearest first."""
    wanted = class_row(query)
    scored = [(name, cosine(wanted, class_row(embedding))) for name, embedding in others.items()]
    return sorted(scored, key=lambda pair: -pair[1])


def class_row(embedding: Array) -> Array:
    """Row 0 of ``embedding`` [tokens, hidden]: DINOv2's class token, which summarises the image."""
    return np.asarray(embedding[0], dtype=np.float32)


def cosine(left: Array, right: Array) -> float:
    """The cosine of the angle between two vectors; 0.0 when one of them is zero."""
    scale = float(np.linalg.norm(left) * np.linalg.norm(right))
    return float(left @ right) / scale if scale else 0.0


def job_table(job: JobAnswer, *, title: str) -> Table:
    """The job as a table; times are milliseconds."""
    table = parts_table(title=title)
    for item in job.items:
        add_part(table, item_name(item), item)
        for track in item.tracks:
            add_part(table, f"  {track.type} track", track)
    return table


def named_parts(job: JobAnswer) -> Iterator[tuple[str, PartAnswer]]:
    """Every part with its name: that of its item, with the track where it is one."""
    for item in job.items:
        yield item_name(item), item
        for track in item.tracks:
            yield f"{item_name(item)} {track.type} track", track


def item_name(item: ItemAnswer) -> str:
    """The caller's id of the item, else its index."""
    return item.id or f"#{item.index}"
