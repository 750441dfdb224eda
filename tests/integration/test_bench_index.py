"""``python -m bench.index`` runs, and its targets hold on a small index as they do on a large one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter

from bench.index.entries import row_of
from epd.contracts.media import Modality
from epd.store.cache.entry import read_entry
from tests.integration.transport_kit import ROOT


def test_the_figures_are_measured() -> None:
    """Times of a loaded test machine say nothing; bytes do."""
    sizes = ["--entries", "4000", "--few", "500", "--repeats", "3"]
    done = subprocess.run(
        [sys.executable, "-m", "bench.index", "--json", *sizes],
        cwd=ROOT, check=False, capture_output=True, text=True, timeout=110,
    )  # fmt: skip
    assert done.returncode in {0, 1}, done.stderr
    figures = json.loads(done.stdout)
    for name in ("bytes_per_entry", "bytes_per_entry_both", "bytes_per_entry_l2", "bytes_per_entry_image"):
        assert 200 < figures[name] < 1024, name
    assert figures["evict_ratio"] > 0
    assert figures["entries"] == 4_000


def test_the_rows_are_real_entries_of_their_own() -> None:
    rows = [row_of(number) for number in range(20)]
    entries = [read_entry(row.key, row.text) for row in rows]
    assert [entry.ref.nbytes for entry in entries] == [row.nbytes for row in rows]
    kinds = Counter(entry.metadata.modality for entry in entries)
    assert kinds == {Modality.IMAGE: 16, Modality.AUDIO: 2, Modality.VIDEO: 2}
    assert len({entry.metadata.content_digest for entry in entries} | {row.key for row in rows}) == 40
