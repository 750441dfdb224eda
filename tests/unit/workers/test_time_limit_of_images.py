"""A soft time limit that strikes inside Pillow stays a time limit: the file is not at fault."""

from __future__ import annotations

from pathlib import Path

import pytest
from billiard.exceptions import SoftTimeLimitExceeded
from PIL import Image

from workers.decode.image import open_image


def test_a_soft_limit_is_not_taken_for_a_corrupt_file(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.new("RGB", (8, 8)).save(path)
    with (
        pytest.raises(SoftTimeLimitExceeded),
        open_image(path, format_name="PNG", max_pixels=100),
    ):
        raise SoftTimeLimitExceeded
