"""A CPU worker that is configured wrongly ends at its start, before it takes a message."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import redis

from epd.settings import child_environment

ROOT = Path(__file__).parents[2]
WORKERS = {"fetch": ["-c", "1"], "decode": ["-c", "1"]}


@pytest.mark.parametrize("queue", WORKERS)
@pytest.mark.parametrize(
    ("setting", "value"), [("EPD_CONFIG", "no-such-file.toml"), ("EPD_STORE_URL", "http://not-a-server")]
)
def test_a_wrong_setting_ends_the_start(real_server_url: str, queue: str, setting: str, value: str) -> None:
    broker = f"{real_server_url}/9"
    client = redis.Redis.from_url(broker)
    client.flushdb()
    client.lpush(queue, "a message")
    given = {"EPD_BROKER_URL": broker, "EPD_STORE_URL": f"{real_server_url}/10", "EPD_CONFIG": "epd.toml"}
    argv = [sys.executable, "-m", "celery", "-A", "tasks", "worker", "-Q", queue, "-n", f"wrong-{queue}@%h"]
    run = subprocess.run(
        [*argv, *WORKERS[queue]],
        cwd=ROOT,
        env=child_environment(given | {setting: value}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode != 0
    assert "epd: " in run.stderr
    assert value in run.stderr or setting in run.stderr
    assert client.llen(queue) == 1
    client.flushdb()
    client.close()
