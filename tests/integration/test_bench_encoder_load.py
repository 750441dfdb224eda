"""``python -m bench.encoder``: a load on a whole stack, and the servers that epd is compared with."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.encoder.load.servers import KINDS
from bench.encoder.load.sides import running_server
from bench.encoder.load.sweep import Loads
from bench.encoder.load.traffic import Arrivals, Mix, Traffic
from bench.encoder.site.device import DeviceModel
from bench.encoder.site.files import Kind
from bench.encoder.site.media import running_media
from tests.paths import ROOT

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("media", ["image", "audio", "video"])
def test_a_load_is_measured_and_drawn(media: str, tmp_path: Path) -> None:
    """Figures of a loaded test machine say nothing, so only their presence and their kind are checked."""
    page = tmp_path / "page.html"
    command = [sys.executable, "-m", "bench.encoder", "--only", "sweep", "--json", "--html", str(page)]
    command += ["--media", media, "--size", "small", "--items", "2", "--qps", "3", "--seconds", "2"]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    sweep = json.loads(done.stdout)["sweep"]
    (point,) = sweep["points"]
    assert "simulated device" in sweep["device"]
    assert point["success_rate"] == 1.0
    assert point["p99_ms"] >= point["p50_ms"] > 0
    assert point["items_a_batch"] >= 1
    assert point["round_trips_an_item"] > 0
    assert point["cpu_ms_an_item"].keys() == {"redis", "fetch", "decode", "api", "gpu"}
    assert "simulated device" in page.read_text()


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_server_without_epd_answers_as_epd_does(kind: str) -> None:
    with running_media(0.0) as media, running_server(kind, DeviceModel(1.0, 1.0)) as side:
        traffic = Traffic(media, Kind.SMALL, 2, Mix.DISTINCT, Arrivals.CONSTANT)
        point = Loads(traffic, 1.0, lambda what: None).at_rate(side, 5.0)
    assert point.outcome.success == 1.0
    assert point.spent.cpu[kind] > 0
