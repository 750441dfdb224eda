"""The storms in their short form: each kind of fault once or twice, on real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.report import Line
from tests.chaos.runner import run_all
from tests.chaos.scenarios.catalogue import ALL

_SEED = 20261130
SHORT = [scenario for scenario in ALL if scenario.in_short]


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Line]:
    """All of them, run once; stacks are shared, so one after the other is far faster than each alone."""
    told: list[Line] = []
    keep: Path = tmp_path_factory.mktemp("chaos")
    run_all(SHORT, seed=_SEED, short=True, tell=told.append, keep=keep)
    return {line.scenario: line for line in told}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [scenario.name for scenario in SHORT])
def test_nothing_is_lost_and_nothing_ends_twice(lines: dict[str, Line], name: str) -> None:
    line = lines[name]
    assert line.submitted > 0
    assert (line.lost, line.duplicated) == (0, 0), line.why
    assert line.why == []
    assert line.completed + sum(line.failed.values()) + line.facts["gone"] == line.submitted
