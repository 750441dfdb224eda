"""A whole stack as ``epd up`` runs it with a small Qwen2.5-VL, and one handoff for each file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from bench.handoff.recompute import IMAGE_RULES
from epd.client import Client, HandoffRequest, Placement
from epd.contracts.errors import EncodeFailed
from epd.stack.parts import StackOptions
from epd.stack.stack import Stack

#: The tower is as small as the family allows: a handoff's size and cost do not depend on it.
_VISION = {
    "depth": 1, "hidden_size": 64, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 64,
    "fullatt_block_indexes": [],
}  # fmt: skip
_TEXT = {
    "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2, "vocab_size": 100,
}  # fmt: skip
_WAIT = 300.0
_TEXT_BEFORE = 15


@dataclass(frozen=True, slots=True)
class Site:
    """A running stack. A handoff has the name of its file."""

    stack: Stack

    def processes(self) -> dict[str, psutil.Process]:
        """The processes that answer a read: the API and the store."""
        return {name: psutil.Process(self._pid(name)) for name in ("api", "redis")}

    def _pid(self, name: str) -> int:
        pid = self.stack.pid(name)
        if pid is None:
            raise RuntimeError(f"{name} is down:\n{self.stack.log_tail(name)}")
        return pid


@contextmanager
def running_site(folder: Path, files: Sequence[Path]) -> Iterator[Site]:
    """A stack that has encoded each file and holds its handoff.

    Raises:
        EncodeFailed: a file could not be encoded.
    """
    with Stack(_options(folder)) as stack:
        stack.wait_ready()
        with Client(stack.api_url) as epd:
            for path in files:
                (item,) = epd.encode([path], wait=_WAIT).items
                if item.embedding is None:
                    raise EncodeFailed(f"{path.name}: {item.error}")
                place = Placement(key=item.embedding.key, offset=_TEXT_BEFORE, length=item.embedding.shape[0])
                epd.put_handoff(path.name, HandoffRequest(items=(place,), mrope_position_delta=-1))
        yield Site(stack)


def _options(folder: Path) -> StackOptions:
    weights = folder / "weights"
    torch.manual_seed(0)
    config = Qwen2_5_VLConfig(text_config=_TEXT, vision_config=_VISION)
    Qwen2_5_VLForConditionalGeneration(config).save_pretrained(weights)
    Qwen2VLImageProcessorPil(**IMAGE_RULES).save_pretrained(weights)
    file = folder / "epd.toml"
    file.write_text(
        f'default_model = "tiny"\n[encoders.tiny]\nfamily = "qwen2_5_vl"\npath = "{weights}"\n'
        'dtype = "float32"\n[models.tiny]\nimage = "tiny"\nvideo = "tiny"\n',
        encoding="utf-8",
    )
    overrides = {"EPD_TORCH_THREADS": "1"}
    return StackOptions(
        config=file, data_dir=folder / "data", downloads=2, decode_processes=1, overrides=overrides
    )
