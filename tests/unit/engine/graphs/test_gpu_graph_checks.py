"""The graph checks of tests/gpu, on the CPU twin: a check that nobody runs is none."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import Tensor

from tests.gpu import graph_checks
from tests.gpu.batches import FAMILIES
from tests.gpu.site import twin_site
from tests.quick import quick

CHECKS = [
    graph_checks.check_bucket_edges,
    graph_checks.check_every_pair,
    graph_checks.check_neighbours,
    graph_checks.check_rows_are_kept,
    graph_checks.check_calibrated,
]
#: Fewer buckets than on a device: the twin computes on two cores.
SMALL = {"check_bucket_edges": {"items": 3, "rows": 384}, "check_every_pair": {"items": 2, "rows": 320}}


@pytest.mark.parametrize("family", quick(FAMILIES, "dinov2", "qwen2_5_vl", "qwen2_5_omni_audio"))
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_graph_checks_on_the_twin(check: object, family: str, tmp_path: Path) -> None:
    assert callable(check)
    check(twin_site(), family, tmp_path, **SMALL.get(check.__name__, {}))


def test_rows_of_the_pool_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy, calls = Tensor.clone, iter(range(100))
    # The runner's copy is the first of the check, and the check's own the second.
    monkeypatch.setattr(Tensor, "clone", lambda rows: rows if next(calls) == 0 else copy(rows))
    with pytest.raises(AssertionError):
        graph_checks.check_rows_are_kept(twin_site(), "dinov2", tmp_path)
