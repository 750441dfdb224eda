"""The demo's word error rate and nearest photo."""

from __future__ import annotations

import numpy as np
import pytest

from demo.results import cosine, rank, transcribe, word_error_rate


@pytest.mark.parametrize(
    ("reference", "said", "rate"),
    [
        ("Mr. John came.", "mister john came", 0.0),
        ("ill-disposed", "Ill disposed!", 0.0),
        ("one two three four", "one three four", 0.25),
        ("one two three four", "one two too three four", 0.25),
        ("one two three four", "one two three five", 0.25),
        ("one", "", 1.0),
        ("one", "a b c", 3.0),
    ],
)
def test_word_error_rate(reference: str, said: str, rate: float) -> None:
    assert word_error_rate(reference, said) == pytest.approx(rate)


def test_a_reference_without_words_is_refused() -> None:
    with pytest.raises(ValueError, match="no word"):
        word_error_rate("...", "hello")


def test_part_of_a_window_is_refused() -> None:
    from pathlib import Path

    with pytest.raises(ValueError, match="1499 rows"):
        transcribe(np.zeros((1499, 4), np.float32), Path("nowhere"))


def test_rank_puts_the_nearest_first() -> None:
    query = np.array([[1.0, 0.0], [9.0, 9.0]])
    others = {"far": np.array([[-1.0, 0.1]]), "near": np.array([[2.0, 0.1]]), "side": np.array([[0.0, 3.0]])}
    assert [name for name, _ in rank(query, others)] == ["near", "side", "far"]


def test_cosine_ignores_length_and_survives_zero() -> None:
    assert cosine(np.array([3.0, 4.0]), np.array([0.6, 0.8])) == pytest.approx(1.0)
    assert cosine(np.zeros(2), np.ones(2)) == 0.0
