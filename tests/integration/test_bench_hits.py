"""``python -m bench.hits`` runs on a whole stack, every answer is right, and it leaves nothing behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.hits.load import Request, Tally
from tests.integration.transport_kit import ROOT

BODY = (
    b'{"state":"done","items":[{"state":"done","cached":true,"embedding":{"key":"k"},'
    b'"metadata":{"embedding_key":"k"}}]}'
)


@pytest.mark.slow
def test_the_figures_are_measured() -> None:
    """Figures of a loaded test machine say nothing, so only their presence and their kind are checked."""
    before = set(Path("/dev/shm").glob("epd-hits-*"))
    done = subprocess.run(
        [sys.executable, "-m", "bench.hits", "--json", "--seconds", "0.5", "--kinds"], cwd=ROOT,
        check=False, capture_output=True, text=True, timeout=110,
    )  # fmt: skip
    assert done.returncode in {0, 1}, done.stderr
    figures = json.loads(done.stdout)
    assert figures["wrong_answers"] == []
    assert figures["unsent_at_70"] == 0
    assert figures["items_per_s"] > 0
    assert figures["p99_ms_at_70"] >= figures["p50_ms_at_70"] > 0
    assert figures["p99_ms_at_2800_items_per_s"] > 0
    assert figures["cold_over_hit"] > 1
    assert set(Path("/dev/shm").glob("epd-hits-*")) <= before


def test_wrong_answers_are_seen() -> None:
    request = Request(body="{}", keys=("k",))
    bodies = [
        (200, BODY), (503, b"{}"), (200, BODY.replace(b"true", b"false")),
        (200, BODY.replace(b'"key":"k"', b'"key":"other"')), (200, BODY.replace(b"done", b"failed")),
        (200, BODY.replace(b'embedding_key":"k', b'embedding_key":"o')),
    ]  # fmt: skip
    tally = Tally()
    for status, body in bodies:
        tally.take(request, status, body, 0.001)
    outcome = tally.outcome(1.0)
    assert (outcome.answered, len(outcome.wrong)) == (6, 5)
