"""The command line of ``python -m gpu_worker``."""

from __future__ import annotations

import pytest

from epd.contracts.errors import SettingsError
from gpu_worker.options import child_arguments, parse_options


def test_options_split_our_own_from_celerys() -> None:
    options = parse_options(["--devices", "0", "-l", "DEBUG", "-n", "gpu7@%h", "--pidfile=x"])
    assert (options.device, options.node) == ("cuda:0", "gpu7@%h")
    assert options.celery == ("-l", "DEBUG", "--pidfile=x")
    assert parse_options([]).devices == (None,)


@pytest.mark.parametrize(
    ("words", "devices"),
    [
        ("auto", (None,)),
        ("cpu", ("cpu",)),
        ("cpu:1", ("cpu",)),
        ("cpu:3", ("cpu", "cpu", "cpu")),
        ("0,1,5", ("cuda:0", "cuda:1", "cuda:5")),
    ],
)
def test_every_form_of_devices(words: str, devices: tuple[str | None, ...]) -> None:
    assert parse_options(["--devices", words]).devices == devices


@pytest.mark.parametrize(
    "words",
    ["gpu", "", "0,", "0,cpu", "cpu:0", "cpu:", "cpu:x", "cpu:65", "-1", "0,0", "1,01", "²"],
)
def test_other_devices_are_refused_by_name(words: str) -> None:
    with pytest.raises(SettingsError, match=f"--devices='{words}'"):
        parse_options([f"--devices={words}"])


@pytest.mark.parametrize("word", ["0", "x", "65"])
def test_other_shares_are_refused_by_name(word: str) -> None:
    with pytest.raises(SettingsError, match=f"--share='{word}'"):
        parse_options([f"--share={word}"])


def test_each_device_gets_a_worker_that_reads_back_as_meant() -> None:
    options = parse_options(["--devices", "0,2", "-l", "DEBUG"])
    first, second = (parse_options(own) for own in child_arguments(options))
    assert (first.device, first.node, first.share) == ("cuda:0", "gpu0@%h", 2)
    assert (second.device, second.node, second.celery) == ("cuda:2", "gpu1@%h", ("-l", "DEBUG"))


def test_a_name_that_ends_in_a_digit_stays_readable() -> None:
    options = parse_options(["--devices", "cpu:2", "-n", "gpu1@box"])
    assert [parse_options(own).node for own in child_arguments(options)] == ["gpu1-0@box", "gpu1-1@box"]
