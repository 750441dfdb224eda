"""Two hundred requests of one image each, all at once: two hundred answers, each its own."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import BitImageProcessor, Dinov2Model

from epd.client import AsyncClient
from epd.contracts.job import State
from epd.contracts.responses import JobAnswer
from epd.stack.stack import Stack

REQUESTS = 200


def some_jpeg(number: int) -> bytes:
    """A JPEG that no other number gives."""
    generator = np.random.default_rng(number)
    coarse = generator.integers(0, 256, (6, 8, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(coarse).resize((280, 260), Image.Resampling.BICUBIC).save(buffer, "PNG")
    return buffer.getvalue()


async def post_all(url: str, images: list[bytes]) -> list[JobAnswer]:
    async with AsyncClient(url, timeout=120) as client:
        requests = [client.encode([{"type": "image", "data": data}], model="tiny") for data in images]
        return await asyncio.gather(*requests)


async def read_all(url: str, jobs: list[JobAnswer]) -> list[np.ndarray]:
    async with AsyncClient(url, timeout=120) as client:
        keys = [job.items[0].embedding.key for job in jobs if job.items[0].embedding]
        return [await client.embedding(key) for key in keys]


@torch.inference_mode()
def single_results(folder: Path, images: list[bytes]) -> list[np.ndarray]:
    """Each image alone through transformers' own processor and model."""
    torch.set_num_threads(1)
    model = Dinov2Model.from_pretrained(folder).eval()
    processor = BitImageProcessor(
        size={"shortest_edge": 256},
        crop_size={"height": 224, "width": 224},
        image_mean=[0.485, 0.456, 0.406],
        image_std=[0.229, 0.224, 0.225],
    )
    rows = []
    for data in images:
        pixels = processor(Image.open(io.BytesIO(data)).convert("RGB"), return_tensors="pt")
        rows.append(model(**pixels).last_hidden_state[0].numpy())
    return rows


@pytest.mark.timeout(300)
def test_two_hundred_requests_at_once(stack: Stack, checkpoints: Path) -> None:
    images = [some_jpeg(number) for number in range(REQUESTS)]
    jobs = asyncio.run(post_all(stack.api_url, images))

    assert [job.state for job in jobs] == [State.DONE] * REQUESTS
    assert len({job.job_id for job in jobs}) == REQUESTS
    found = asyncio.run(read_all(stack.api_url, jobs))
    assert len(found) == REQUESTS
    for mine, expected in zip(found, single_results(checkpoints / "tiny", images), strict=True):
        assert np.abs(mine - expected).max() <= 1e-3 * np.abs(expected).max()
