"""Which photo is nearest to a query photo, by the cosine of their DINOv2 class-token rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

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
