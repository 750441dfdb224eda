"""What ``epd doctor`` says is what the workers do."""

from __future__ import annotations

from pathlib import Path

import pytest

from epd.cli import doctor


@pytest.mark.parametrize(
    ("told", "well", "words"),
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
def test_a_server_that_is_too_old_is_told(told: dict[str, str], well: bool, words: str) -> None:
    assert doctor._server(told, "host") == (well, words)


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
