"""The command line's parts that need no server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from epd.cli.encode import expand
from epd.cli.output import item_line, item_table
from epd.cli.parts import free_port, new_media_dir, port_is_free, sweep_media_dirs
from epd.contracts.answers import EmbeddingAnswer, ItemAnswer, PartAnswer
from epd.contracts.errors import InvalidRequest, SettingsError
from epd.contracts.job import State
from epd.contracts.media import Modality

pytestmark = pytest.mark.unit


def test_names_come_from_arguments_globs_and_standard_input(tmp_path: Path) -> None:
    for name in ("a.png", "b.png", "[c].png"):
        (tmp_path / name).write_bytes(b"x")
    found = list(expand([str(tmp_path / "[ab].png"), "-", "http://h.example/x.png"], ["one.png\n", "\n"]))
    assert found == [str(tmp_path / "a.png"), str(tmp_path / "b.png"), "one.png", "http://h.example/x.png"]
    assert list(expand([str(tmp_path / "[c].png")], [])) == [str(tmp_path / "[c].png")]


def test_a_glob_without_a_match_is_an_error() -> None:
    with pytest.raises(InvalidRequest, match=r"nothing-\*"):
        list(expand(["nothing-*.png"], []))


def video() -> ItemAnswer:
    embedding = EmbeddingAnswer(key="k", shape=(4, 8), dtype="float32", nbytes=128, url="/v1/embeddings/k")
    track = PartAnswer(type=Modality.AUDIO, state=State.DONE, embedding=embedding)
    return ItemAnswer(
        index=0,
        type=Modality.VIDEO,
        state=State.DONE,
        embedding=embedding,
        tracks=(track,),
        timings={"fetch": 0.1},
    )


def test_a_line_is_json_with_the_name_that_was_asked_for() -> None:
    line = json.loads(item_line("v.mp4", video()))
    assert line["source"] == "v.mp4"
    assert line["tracks"][0]["embedding"]["shape"] == [4, 8]


def test_the_table_has_a_row_for_each_track() -> None:
    assert item_table([("v.mp4", video())]).row_count == 2


def test_a_port_in_use_is_refused_by_number() -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert not port_is_free(port)
        with pytest.raises(SettingsError, match=str(port)):
            free_port(port)
    assert free_port() > 0


def test_folders_of_dead_stacks_are_swept_and_of_live_ones_kept() -> None:
    mine = new_media_dir()
    dead = mine.with_name("epd-999999999-abc")
    dead.mkdir()
    try:
        swept = sweep_media_dirs()
        assert dead in swept
        assert not dead.exists()
        assert mine.exists()
    finally:
        mine.rmdir()
