"""``epd doctor`` reports what the workers do."""

from __future__ import annotations

from pathlib import Path

import pytest

from epd.cli import doctor
from epd.settings import Settings
from epd.stack.parts import DEFAULT_DATA_DIR, env_file, free_port, running_setting


@pytest.mark.parametrize(
    ("printed", "well", "words"),
    [
        ({"redis_version": "7.0.15"}, True, "Redis 7.0.15 at host"),
        ({"redis_version": "6.2.6"}, False, "Redis 6.2.6 at host: older than 7.0"),
        (
            {"server_name": "valkey", "redis_version": "7.2.4", "valkey_version": "9.1.2"},
            True,
            "Valkey 9.1.2 at host",
        ),
    ],
)
def test_a_server_that_is_too_old_is_reported(printed: dict[str, str], well: bool, words: str) -> None:
    assert doctor._server(printed, "host") == (well, words)


def test_the_redis_of_a_running_stack_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EPD_BROKER_URL", raising=False)
    assert doctor._broker(Settings())[1].startswith("the default; no stack runs")
    (tmp_path / DEFAULT_DATA_DIR).mkdir(parents=True)
    env_file(DEFAULT_DATA_DIR).write_text("export EPD_BLOB_DIR='/a b'\nexport EPD_BROKER_URL=redis://h:7/0\n")
    assert doctor._broker(Settings()) == ("redis://h:7/0", "of the stack in .epd/stack")
    assert running_setting(DEFAULT_DATA_DIR, "EPD_BLOB_DIR") == "/a b"
    assert running_setting(DEFAULT_DATA_DIR, "EPD_API_PORT") is None
    monkeypatch.setenv("EPD_BROKER_URL", "redis://given:1/0")
    assert doctor._broker(Settings()) == ("redis://given:1/0", "EPD_BROKER_URL")


def test_an_unreachable_redis_is_reported_with_its_source() -> None:
    well, found = doctor._redis(f"redis://:secret@127.0.0.1:{free_port()}/0", "EPD_BROKER_URL")
    assert well
    assert "(EPD_BROKER_URL): " in found
    assert "secret" not in found


def test_a_missing_api_is_no_fault() -> None:
    well, found = doctor._api(f"http://127.0.0.1:{free_port()}")
    assert well
    assert "none at http://127.0.0.1:" in found


def test_the_ffmpeg_shown_is_the_one_that_decodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's is too old for the decode worker, which then takes the one in the wheel."""
    old = tmp_path / "ffmpeg"
    old.write_text("#!/bin/sh\necho 'ffmpeg version 4.2.7 Copyright'\n", encoding="ascii")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    well, found = doctor._ffmpeg()
    assert well, found
    assert str(old) not in found
    assert "imageio_ffmpeg" in found
