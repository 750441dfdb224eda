"""The models of both sides: small Qwen2.5-VL checkpoints in the proportions of real models.

How much separate processes gain depends on how much of a request's work is encoding. So that share is the
real model's, for the images of this benchmark; ``encode_over_prefill`` computes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from safetensors import safe_open

from examples.epd_transformers.proof.checkpoints import Sizes, make_qwen2_5_vl

#: Rows of an image at most: 1080p becomes 588 x 336 pixels, 1008 patches, 252 rows.
ROWS = 256
_PATCHES_OF_A_ROW = 4
_HEAD = 32  #: width of a head of the small language models; their rotary sections need it


@dataclass(frozen=True)
class Vision:
    """A vision tower; ``full`` of its blocks attend to all patches, the others to ``window`` of them."""

    hidden: int
    intermediate: int
    depth: int
    full: int
    mlp_matrices: int = 3
    window: int = 64

    def work(self, rows: int, out: int) -> float:
        """Multiply-adds for an image that gives [rows, out]."""
        patches, width = rows * _PATCHES_OF_A_ROW, self.hidden * _PATCHES_OF_A_ROW
        block = 4 * self.hidden**2 + self.mlp_matrices * self.hidden * self.intermediate
        seen = self.full * patches + (self.depth - self.full) * min(self.window, patches)
        merger = width**2 + width * out
        return patches * (self.depth * block + 2 * seen * self.hidden) + rows * merger


@dataclass(frozen=True)
class Language:
    """A language model. ``kv`` is the width of its keys."""

    hidden: int
    intermediate: int
    layers: int
    kv: int

    def work(self, tokens: int) -> float:
        """Multiply-adds for a prompt; each token attends to those before it."""
        layer = 2 * self.hidden**2 + 2 * self.hidden * self.kv + 3 * self.hidden * self.intermediate
        return self.layers * (tokens * layer + tokens**2 * self.hidden)


@dataclass(frozen=True)
class Model:
    """The sizes of a vision-language model that decide its work."""

    vision: Vision
    language: Language

    def encode_over_prefill(self, images: int = 8, rows: int = 252) -> float:
        """Work of the vision tower over that of the language model, for one prompt of images."""
        return images * self.vision.work(rows, self.language.hidden) / self.language.work(images * rows)


#: From their published configurations.
REAL = {
    "qwen2-vl-2b": Model(Vision(1280, 5120, 32, full=32, mlp_matrices=2), Language(1536, 8960, 28, kv=256)),
    "qwen2.5-vl-3b": Model(Vision(1280, 3420, 32, full=4), Language(2048, 11008, 36, kv=256)),
}
#: The models that run. They are wide and shallow: in a narrow one attention would dominate a prompt.
SMALL = {
    "qwen2-vl-2b": Model(Vision(160, 424, 9, full=3), Language(512, 1408, 2, kv=64)),
    "qwen2.5-vl-3b": Model(Vision(160, 424, 6, full=2), Language(512, 1408, 3, kv=64)),
}


def make_model(folder: Path, name: str) -> None:
    """Write a checkpoint with the proportions of the real model of this name."""
    vision, language = SMALL[name].vision, SMALL[name].language
    text = {
        "hidden_size": language.hidden,
        "intermediate_size": language.intermediate,
        "num_hidden_layers": language.layers,
        "num_attention_heads": language.hidden // _HEAD,
        "num_key_value_heads": language.kv // _HEAD,
    }
    step = vision.depth // vision.full
    tower = {
        "depth": vision.depth,
        "hidden_size": vision.hidden,
        "intermediate_size": vision.intermediate,
        "num_heads": 4,
        "out_hidden_size": language.hidden,
        "fullatt_block_indexes": [step * number - 1 for number in range(1, vision.full + 1)],
    }
    pixels = {"size": {"shortest_edge": 4 * 28 * 28, "longest_edge": ROWS * 28 * 28}}
    make_qwen2_5_vl(folder, sizes=Sizes(text=text, vision=tower), processor=pixels)


def parameters(folder: Path) -> dict[str, int]:
    """Parameters of the vision tower (``encoder``) and of the rest (``language_model``)."""
    found = {"encoder": 0, "language_model": 0}
    with safe_open(folder / "model.safetensors", "np") as file:
        for name in file.keys():  # noqa: SIM118  not a mapping
            shape = file.get_slice(name).get_shape()
            count = 1
            for side in shape:
                count *= side
            found["encoder" if "visual" in name else "language_model"] += count
    return found
