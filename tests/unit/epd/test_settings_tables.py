"""The tables of settings in the docs: each name exists, and its default is the one that the code has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from epd.settings import Settings
from tests.paths import ROOT

_PAGES = ("README.md", "docs/operations.md", "docs/handoff.md", "docs/performance.md")
_UNITS = {"GiB": 1 << 30, "MiB": 1 << 20}
_NEEDED = {
    "API_PORT", "FLOWER_PORT", "CONFIG", "BROKER_URL", "STORE_URL", "BLOB_DIR", "BLOB_BYTES", "EMBEDDING_DIR",
    "EMBEDDING_BYTES", "L2_DIR", "URL_TTL", "FETCH_ALLOW_HOSTS", "MAX_WAIT",
}  # fmt: skip


def rows() -> Iterator[tuple[str, str]]:
    """(setting without its prefix, default as it is told) of every table that has both."""
    for page in _PAGES:
        for line in (ROOT / page).read_text(encoding="utf-8").splitlines():
            if line.startswith("| `EPD_"):
                _, names, defaults, *_ = line.split("|")
                told = [word.strip() for word in defaults.split(",")]
                yield from zip(re.findall(r"`EPD_(\w+)`", names), told, strict=True)


def spelled(value: object) -> set[str]:
    """How a default may stand in a table."""
    if value is None:
        return {"unset"}
    if isinstance(value, tuple):
        return {"none"} if not value else {", ".join(map(str, value))}
    if isinstance(value, str | Path):
        return {f"`{value}`"}
    assert isinstance(value, int | float)
    sizes = {f"{value // size:g} {unit}" for unit, size in _UNITS.items() if value and value % size == 0}
    return {f"{value:g}", str(value), *sizes}


@pytest.mark.parametrize(("name", "told"), sorted(set(rows())))
def test_a_default_in_a_table_is_the_one_of_the_code(name: str, told: str) -> None:
    wanted = spelled(Settings.model_fields[name.lower()].default)
    assert told in wanted or told.partition(":")[0] in wanted, f"{told} is not one of {wanted}"


def test_what_a_user_needs_is_told() -> None:
    assert {name for name, _ in rows()} >= _NEEDED


@pytest.mark.parametrize("page", _PAGES)
def test_every_setting_that_is_named_exists(page: str) -> None:
    named = set(re.findall(r"`EPD_([A-Z0-9_]+)(?:=\w+)?`", (ROOT / page).read_text(encoding="utf-8")))
    assert {name for name in named if name.lower() not in Settings.model_fields} == set()
