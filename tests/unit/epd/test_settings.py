"""Settings: read from the environment, checked by name, and documented with their defaults."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from epd.contracts.errors import SettingsError
from epd.settings import Settings, read_settings
from tests.paths import ROOT


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("EPD_")]:
        monkeypatch.delenv(name)


def test_the_defaults_are_valid() -> None:
    found = read_settings()
    assert found.store_url != found.broker_url
    assert found.heartbeat_ttl > 2 * found.heartbeat_period
    assert found.url_ttl == 0


def test_values_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPD_STORE_URL", "redis://elsewhere/3")
    monkeypatch.setenv("EPD_BLOB_DIR", "/data/blobs")
    monkeypatch.setenv("EPD_MAX_ITEMS", "7")
    monkeypatch.setenv("EPD_FETCH_ALLOW_HOSTS", "127.0.0.1:8000, ::1 ,")
    found = read_settings()
    assert (found.store_url, found.blob_dir) == ("redis://elsewhere/3", Path("/data/blobs"))
    assert (found.max_items, found.fetch_allow_hosts) == (7, ("127.0.0.1:8000", "::1"))


def test_hosts_come_in_each_spelling_and_log_levels_in_each_case(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = ("localhost", "10.0.0.7:81", "[::1]:80", "fe80::1", "my_host.lan")
    monkeypatch.setenv("EPD_FETCH_ALLOW_HOSTS", ",".join(hosts))
    monkeypatch.setenv("EPD_LOG_LEVEL", "debug")
    assert (read_settings().fetch_allow_hosts, read_settings().log_level) == (hosts, "DEBUG")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("EPD_MAX_ITEMS", "many"),
        ("EPD_MAX_ITEMS", "0"),
        ("EPD_BLOB_BYTES", "1"),
        ("EPD_JOB_DEADLINE", "nan"),
        ("EPD_FETCH_TOTAL_TIMEOUT", "inf"),
        ("EPD_LOG_LEVEL", "LOUD"),
        ("EPD_FETCH_ALLOW_HOSTS", "http://127.0.0.1:8000"),
        ("EPD_FETCH_ALLOW_HOSTS", "*.example.org"),
        ("EPD_API_PORT", "70000"),
        ("EPD_FETCH_RETRIES", "-1"),
    ],
)
def test_a_bad_value_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=name) as caught:
        read_settings()
    assert value in str(caught.value)


def test_every_unknown_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPD_MAX_ITMES", "7")
    monkeypatch.setenv("EPD_COLOUR", "red")
    with pytest.raises(SettingsError, match="EPD_COLOUR, EPD_MAX_ITMES"):
        read_settings()


def test_other_variables_are_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://x")
    assert read_settings().store_url == "redis://127.0.0.1:6379/1"


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError):
        read_settings().max_items = 3


def test_what_only_tests_read_is_no_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPD_TEST_REDIS_SERVER", "/usr/bin/redis-server")
    assert read_settings().max_items == 256


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("EPD_JOB_DEADLINE", "7200", "EPD_MAX_DEADLINE"),
        ("EPD_MAX_DEADLINE", "7200", "EPD_MEDIA_TTL"),
        ("EPD_HEARTBEAT_PERIOD", "4", "EPD_HEARTBEAT_TTL"),
    ],
)
def test_settings_that_do_not_fit_together_are_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=said):
        read_settings()


def test_a_second_tier_is_off_by_default_and_needs_a_folder_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert read_settings().l2_dir is None
    monkeypatch.setenv("EPD_L2_DIR", "")
    assert read_settings().l2_dir is None
    monkeypatch.setenv("EPD_L2_DIR", str(tmp_path))
    assert read_settings().l2_dir == tmp_path
    monkeypatch.setenv("EPD_EMBEDDING_DIR", f"{tmp_path}/../{tmp_path.name}")
    with pytest.raises(SettingsError, match="EPD_L2_DIR is EPD_EMBEDDING_DIR"):
        read_settings()


_PAGES = ("README.md", "docs/operations.md", "docs/handoff.md", "docs/performance.md")
_UNITS = {"GiB": 1 << 30, "MiB": 1 << 20}
_NEEDED = {
    "API_PORT", "FLOWER_PORT", "CONFIG", "BROKER_URL", "STORE_URL", "BLOB_DIR", "BLOB_BYTES", "EMBEDDING_DIR",
    "EMBEDDING_BYTES", "L2_DIR", "URL_TTL", "FETCH_ALLOW_HOSTS", "MAX_WAIT",
}  # fmt: skip


def rows() -> Iterator[tuple[str, str]]:
    """(setting without its prefix, stated default) of every table that has both."""
    for page in _PAGES:
        for line in (ROOT / page).read_text(encoding="utf-8").splitlines():
            if line.startswith("| `EPD_"):
                _, names, defaults, *_ = line.split("|")
                stated = [word.strip() for word in defaults.split(",")]
                yield from zip(re.findall(r"`EPD_(\w+)`", names), stated, strict=True)


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


@pytest.mark.parametrize(("name", "stated"), sorted(set(rows())))
def test_a_default_in_a_table_is_the_one_of_the_code(name: str, stated: str) -> None:
    wanted = spelled(Settings.model_fields[name.lower()].default)
    assert stated in wanted or stated.partition(":")[0] in wanted, f"{stated} is not one of {wanted}"


def test_what_a_user_needs_is_documented() -> None:
    assert {name for name, _ in rows()} >= _NEEDED


@pytest.mark.parametrize("page", _PAGES)
def test_every_setting_that_is_named_exists(page: str) -> None:
    named = set(re.findall(r"`EPD_([A-Z0-9_]+)(?:=\w+)?`", (ROOT / page).read_text(encoding="utf-8")))
    assert {name for name in named if name.lower() not in Settings.model_fields} == set()
