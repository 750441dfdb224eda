"""The Prefill and Decode side of the speech demo: text from a whisper encoder's embedding.

epd made the embedding [1500, d_model] in another process; here only the decoder of the same checkpoint runs,
in transformers, and never sees a sample of sound. That is Encode-Prefill-Decode in its smallest form.
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

#: Whisper writes titles as the page does; a listener hears the word.
SPOKEN = {"mr": "mister", "mrs": "missis", "dr": "doctor"}
MAX_TOKENS = 200
WINDOW_ROWS = 1500  #: rows that whisper's encoder gives for 30 s


def transcribe(embedding: npt.NDArray[Any], model_folder: Path) -> str:
    """Greedy text from ``embedding`` [1500 * windows, d_model], window after window.

    Raises:
        ValueError: the rows are no whole number of windows.
    """
    rows, width = embedding.shape
    if rows % WINDOW_ROWS:
        raise ValueError(f"{rows} rows are no whole number of {WINDOW_ROWS}-row windows")
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
    """Word edits that turn ``said`` into ``reference``, over the reference's words (Levenshtein).

    Case, punctuation and hyphens do not count. 0.0 is perfect; above 1.0 when more was added than there is.

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


Array = npt.NDArray[Any]


def class_row(embedding: Array) -> Array:
    """Row 0 of ``embedding`` [tokens, hidden]: DINOv2's class token, a summary of the whole image."""
    return np.asarray(embedding[0], dtype=np.float32)


def cosine(left: Array, right: Array) -> float:
    """Cosine of the angle between two vectors; 0.0 when one of them is zero."""
    scale = float(np.linalg.norm(left) * np.linalg.norm(right))
    return float(left @ right) / scale if scale else 0.0


def rank(query: Array, others: Mapping[str, Array]) -> list[tuple[str, float]]:
    """Names of ``others`` (each [tokens, hidden]) with their cosine to ``query``, nearest first."""
    wanted = class_row(query)
    scored = [(name, cosine(wanted, class_row(embedding))) for name, embedding in others.items()]
    return sorted(scored, key=lambda pair: -pair[1])


def job_table(job: JobAnswer, *, title: str) -> Table:
    """The job as a table; times are milliseconds."""
    table = parts_table(title=title)
    for item in job.items:
        add_part(table, item_name(item), item)
        for track in item.tracks:
            add_part(table, f"  {track.type} track", track)
    return table


def named_parts(job: JobAnswer) -> Iterator[tuple[str, PartAnswer]]:
    """Every part with its name: the item's own, or its id and the track."""
    for item in job.items:
        yield item_name(item), item
        for track in item.tracks:
            yield f"{item_name(item)} {track.type} track", track


def item_name(item: ItemAnswer) -> str:
    """The caller's id, else the item's place."""
    return item.id or f"#{item.index}"
