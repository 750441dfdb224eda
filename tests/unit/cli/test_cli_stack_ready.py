"""Waiting for a stack: what died before counts for nothing, what keeps dying meanwhile ends it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from epd.stack.parts import StackOptions
from epd.stack.process import Child, Spec
from epd.stack.stack import Stack, StackFailed

CONFIG = 'default_model = "m"\n[encoders.e]\nfamily = "dinov2"\npath = "e"\n[models.m]\nimage = "e"\n'


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stack]:
    """One that was never started, with a fetch worker that was restarted ten times."""
    config = tmp_path / "epd.toml"
    config.write_text(CONFIG, "utf-8")
    made = Stack(StackOptions(config=config, data_dir=tmp_path / "data"))
    child = Child(Spec("fetch", ("true",), 1), tmp_path / "fetch.log", {}, restarts=10)
    monkeypatch.setattr(made, "_children", {"fetch": child})
    yield made
    made.stop()


def answering(stack: Stack, monkeypatch: pytest.MonkeyPatch, answer: Callable[[], str]) -> None:
    monkeypatch.setattr(stack, "_not_ready", answer)


def test_restarts_of_long_ago_do_not_end_the_wait(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(["store: no answer", ""])
    answering(stack, monkeypatch, lambda: next(answers))
    stack.wait_ready(10)


def test_a_part_that_keeps_dying_ends_the_wait(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_ready() -> str:
        stack._children["fetch"].restarts += 1
        return "no fetch worker"

    answering(stack, monkeypatch, not_ready)
    with pytest.raises(StackFailed, match="fetch keeps dying"):
        stack.wait_ready(10)
