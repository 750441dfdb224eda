"""``epd encode`` and the command's errors: sources, tables, JSON lines, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from unittest.mock import patch

import pytest
from rich.console import Console

from epd.cli.doctor import require_server
from epd.cli.encode import RefusedItem, error_lines, expand, item_line, item_table
from epd.cli.main import app
from epd.contracts.errors import InvalidRequest, SettingsError
from epd.contracts.job import ErrorInfo, State
from epd.contracts.media import Modality
from epd.contracts.responses import EmbeddingAnswer, ItemAnswer, PartAnswer
from epd.version import VERSION

pytestmark = pytest.mark.unit


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


def test_a_json_line_names_its_source() -> None:
    line = json.loads(item_line("v.mp4", video()))
    assert line["source"] == "v.mp4"
    assert line["tracks"][0]["embedding"]["shape"] == [4, 8]


def failed(message: str = "m") -> ItemAnswer:
    error = ErrorInfo(code="corrupt_media", message=message, retryable=False)
    return ItemAnswer(index=0, type=Modality.IMAGE, state=State.FAILED, error=error)


def drawn(done: Iterable[tuple[str, ItemAnswer]]) -> list[str]:
    console = Console(file=StringIO(), width=80, record=True)
    console.print(item_table(done))
    return console.export_text().splitlines()


def test_the_table_has_a_row_for_each_track_and_fits_into_80_columns() -> None:
    lines = drawn([("v.mp4", video()), ("x/" * 20 + "[c].png", failed())])
    rows = [line.split() for line in lines]
    assert ["v.mp4", "video", "4", "4x8", "no", "100", *"----"] in rows
    assert ["audio", "track", "audio", "4", "4x8", "no", *"-----"] in rows
    assert max(map(len, lines)) <= 80
    assert "[c].png" in "".join(line.split(" ")[0] for line in lines)  # no markup, and nothing cut off


def test_failures_show_their_message_and_a_long_list_is_cut() -> None:
    track = PartAnswer(type=Modality.AUDIO, state=State.FAILED, error=failed("no audio").error)
    silent = video().model_copy(update={"tracks": (track,)})
    lines = list(error_lines([("a.png", failed("bad [IDAT]")), ("v.mp4", silent)]))
    assert lines == ["a.png: corrupt_media: bad [IDAT]", "v.mp4 audio track: corrupt_media: no audio"]
    many = list(error_lines([("a.png", failed())] * 30))
    assert len(many) == 21
    assert "10 more" in many[-1]


def test_a_refused_item_has_no_type() -> None:
    refused = RefusedItem(index=0, type=Modality.IMAGE, state=State.FAILED, error=failed().error)
    assert "type" not in json.loads(item_line("x", refused))
    assert ["x", "-", "-", "failed", *"------"] in [line.split() for line in drawn([("x", refused)])]


@dataclass(frozen=True)
class Run:
    """What a run of the command left."""

    returncode: int
    stdout: str
    stderr: str


def epd(*arguments: str) -> Run:
    """Run the command in this process, as its console script does."""
    out, err = StringIO(), StringIO()
    status: object = 0
    with patch("sys.argv", ["epd", *arguments]), redirect_stdout(out), redirect_stderr(err):
        try:
            app()
        except SystemExit as end:
            status = end.code
    assert isinstance(status, int)
    return Run(status, out.getvalue(), err.getvalue())


def test_the_command_shows_its_version() -> None:
    command = [sys.executable, "-m", "epd.cli.main", "--version"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.stdout.strip() == f"epd {VERSION}"


def test_a_server_that_is_not_there_is_exit_code_3_and_says_what_to_do() -> None:
    run = epd("status", "--url", "http://127.0.0.1:9")
    assert run.returncode == 3
    assert "epd up" in run.stderr


def test_an_unknown_type_is_a_usage_error() -> None:
    run = epd("encode", "x.png", "--type", "text", "--url", "http://127.0.0.1:9")
    assert run.returncode == 2
    assert "audio" in run.stderr


def test_an_error_keeps_its_brackets() -> None:
    run = epd("encode", "[/x]/*.png", "--url", "http://127.0.0.1:9")
    assert run.returncode == 2
    assert "[/x]/*.png" in run.stderr


def test_a_stack_does_not_wait_for_a_server_that_is_gone() -> None:
    with pytest.raises(SettingsError, match=r"EPD_STORE_URL.*127\.0\.0\.1:9") as caught:
        require_server("EPD_STORE_URL", "redis://me:secret@127.0.0.1:9/1")
    assert "secret" not in str(caught.value)
    require_server("EPD_BROKER_URL", "redis+socket:///nowhere.sock")  # Celery's own form: left to Celery


def test_a_folder_that_cannot_be_made_is_one_line() -> None:
    run = epd("encode", __file__, "--out", f"{__file__}/out", "--url", "http://127.0.0.1:9")
    assert run.returncode == 1
    assert run.stderr.strip() == f"failed: Not a directory: {__file__}/out"


def test_a_name_that_no_file_can_have_fails_alone() -> None:
    run = epd("encode", "a" * 5000 + ".png", "--json", "--url", "http://127.0.0.1:9")
    assert run.returncode == 1
    assert json.loads(run.stdout)["error"]["code"] == "invalid_request"


def test_names_come_from_arguments_globs_and_standard_input(tmp_path: Path) -> None:
    for name in ("a.png", "b.png", "[c].png"):
        (tmp_path / name).write_bytes(b"x")
    found = list(expand([str(tmp_path / "[ab].png"), "-", "http://h.example/x.png"], ["one.png\n", "\n"]))
    assert found == [str(tmp_path / "a.png"), str(tmp_path / "b.png"), "one.png", "http://h.example/x.png"]
    assert list(expand([str(tmp_path / "[c].png")], [])) == [str(tmp_path / "[c].png")]


def test_a_glob_without_a_match_is_an_error() -> None:
    with pytest.raises(InvalidRequest, match=r"nothing-\*"):
        list(expand(["nothing-*.png"], []))
