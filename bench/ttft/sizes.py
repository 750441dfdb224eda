"""The model of both sides: a Qwen2.5-VL in the proportions of the 2B class, small enough for two cores."""

from __future__ import annotations

from pathlib import Path

from safetensors import safe_open

from examples.epd_transformers.proof.checkpoints import Sizes, make_qwen2_5_vl

#: Rows of an image at most: 1080p becomes 588 x 336 pixels, 1008 patches, 252 rows.
ROWS = 256
_TEXT = {
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
}
_VISION = {
    "depth": 6,
    "hidden_size": 160,
    "intermediate_size": 424,
    "num_heads": 4,
    "out_hidden_size": 256,
    "fullatt_block_indexes": [2, 5],
}


def make_model(folder: Path) -> None:
    """Write the checkpoint."""
    pixels = {"size": {"shortest_edge": 4 * 28 * 28, "longest_edge": ROWS * 28 * 28}}
    make_qwen2_5_vl(folder, sizes=Sizes(text=_TEXT, vision=_VISION), processor=pixels)


def parameters(folder: Path) -> dict[str, int]:
    """Numbers of the vision tower (``encoder``) and of the rest (``language_model``)."""
    found = {"encoder": 0, "language_model": 0}
    with safe_open(folder / "model.safetensors", "np") as file:
        for name in file.keys():  # noqa: SIM118  not a mapping
            shape = file.get_slice(name).get_shape()
            count = 1
            for side in shape:
                count *= side
            found["encoder" if "visual" in name else "language_model"] += count
    return found
