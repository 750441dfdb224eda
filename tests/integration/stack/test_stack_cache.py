"""``epd cache`` against a running stack: what was encoded is listed, removed, and made again."""

from __future__ import annotations

import json
import subprocess
import sys

import httpx
import numpy as np
from test_stack_at_once import some_jpeg

from epd.client import Client
from epd.contracts.responses import EmbeddingAnswer
from epd.stack.stack import Stack


def _cache(stack: Stack, *arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "epd.cli.main", "cache", *arguments, "--url", stack.api_url],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code, done.stderr
    return done.stdout


def _encoded(client: Client, number: int) -> tuple[EmbeddingAnswer, bool]:
    job = client.encode([{"type": "image", "data": some_jpeg(number)}], model="qwen-bf16")
    (item,) = job.items
    assert item.embedding is not None, item.error
    return item.embedding, item.cached


def test_an_embedding_is_listed_removed_and_made_again(stack: Stack, client: Client) -> None:
    made, _ = _encoded(client, 7001)
    rows = client.embedding(made.key)
    assert _encoded(client, 7001) == (made, True)
    listed = [json.loads(line) for line in _cache(stack, "ls", "--json", "--limit", "5000").splitlines()]
    (row,) = (row for row in listed if row["key"] == made.key)
    assert (row["encoder"], row["modality"], row["tiers"]) == ("qwen-bf16", "image", ["l1"])
    assert _cache(stack, "rm", made.key) == "removed 1\n"
    assert "no such embedding" in _cache(stack, "rm", made.key, code=1)
    again, cached = _encoded(client, 7001)
    assert (again, cached) == (made, False)
    np.testing.assert_array_equal(client.embedding(again.key), rows)


def test_one_encoder_is_cleared_by_its_revision(stack: Stack, client: Client) -> None:
    made = [_encoded(client, number)[0] for number in (7002, 7003)]
    card = next(each.card for each in client.models().encoders if each.name == "qwen-bf16")
    assert card is not None
    kept = {row.key for row in client.cached() if row.encoder != "qwen-bf16"}
    out = _cache(stack, "clear", "--yes", "--encoder", "qwen-bf16", "--revision", "0" * 8)
    assert out == "removed 0\n"
    out = _cache(stack, "clear", "--yes", "--encoder", "qwen-bf16", "--revision", card.weights_digest[:12])
    assert int(out.split()[1]) >= len(made)
    assert {row.key for row in client.cached()} == kept
    assert [_encoded(client, number)[1] for number in (7002, 7003)] == [False, False]


def test_hits_misses_and_removals_are_counted(stack: Stack, client: Client) -> None:
    before = client.status().cache_totals
    made, _ = _encoded(client, 7004)
    _encoded(client, 7004)
    client.forget(made.key)
    after = client.status().cache_totals
    assert after.misses > before.misses
    assert after.hits_l1 > before.hits_l1
    assert after.removed == before.removed + 1
    text = _cache(stack, "stat")
    assert "hit ratio: " in text
    assert "cache on L2" not in text
    metrics = httpx.get(f"{stack.api_url}/metrics", timeout=10).text
    assert f"epd_cache_removed_total {float(after.removed)}" in metrics
    assert 'epd_cache_hits_total{tier="l1"}' in metrics
