"""The scenarios in their short form, on real processes. ``make test`` runs three, ``make slow`` the rest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.chaos.play import Scenario
from tests.chaos.report import Line
from tests.chaos.runner import run_all
from tests.chaos.scenarios.catalogue import ALL

_SEED = 20261130
#: One for each kind of part that can die: a GPU worker, a process that decodes, and the servers.
CORE = ["gpu_killed_mid_batch", "decode_child_killed", "redis_restarted_with_data"]
REST = [scenario.name for scenario in ALL if scenario.in_short and scenario.name not in CORE]

Lines = dict[str, Line]


def run(names: Sequence[str], keep: Path) -> Lines:
    """One after the other: scenarios of one setup share a stack."""
    printed: list[Line] = []
    chosen: list[Scenario] = [scenario for scenario in ALL if scenario.name in names]
    run_all(chosen, seed=_SEED, short=True, tell=printed.append, keep=keep)
    return {line.scenario: line for line in printed}


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Lines:
    return run(CORE, tmp_path_factory.mktemp("core"))


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory) -> Lines:
    return run(REST, tmp_path_factory.mktemp("rest"))


def check(line: Line) -> None:
    assert line.submitted > 0
    assert (line.lost, line.duplicated) == (0, 0), line.why
    assert line.why == []
    assert line.completed + sum(line.failed.values()) + line.facts["gone"] == line.submitted


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", CORE)
def test_nothing_is_lost_and_nothing_ends_twice(core: Lines, name: str) -> None:
    check(core[name])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", REST)
def test_nothing_is_lost_in_the_other_scenarios(rest: Lines, name: str) -> None:
    check(rest[name])
