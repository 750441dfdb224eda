"""The Lua files of the store: how they are cut into scripts, and what has no place in them."""

from __future__ import annotations

import re

import pytest

from epd.store.scripts import Script, cut_scripts, load_scripts
from tests.rules.source_tree import ROOT

FOLDER = ROOT / "epd" / "store" / "lua"


def texts() -> list[str]:
    return [path.read_text("utf-8") for path in sorted(FOLDER.glob("*.lua"))]


def test_every_script_has_a_name_in_script_and_every_name_a_script() -> None:
    assert cut_scripts(texts()).keys() == set(Script)
    assert load_scripts().keys() == set(Script)


def test_every_library_is_used() -> None:
    marks = re.findall(r"^--@(lib|use) (\w+)$", "\n".join(texts()), re.MULTILINE)
    assert {name for mark, name in marks if mark == "lib"} == {name for mark, name in marks if mark == "use"}


def test_a_script_says_its_keys_its_arguments_and_its_result() -> None:
    sections = [section for text in texts() for section in text.split("--@script ")[1:]]
    assert len(sections) == len(Script)
    wanted = ("-- KEYS: ", " ARGV: ", " Result: ")
    assert [section.split()[0] for section in sections if not all(word in section for word in wanted)] == []


def test_a_library_comes_once_and_after_those_that_it_uses() -> None:
    files = ["--@lib job\n--@use load\nJ\n--@lib load\nL\n", "--@script s\n--@use load\n--@use job\nS\n"]
    (source,) = cut_scripts(files).values()
    assert [line for line in source.splitlines() if line.isupper()] == ["L", "J", "S"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("--@script s\n--@use nothing\n", "nothing: an unknown library"),
        ("--@lib l\n--@use l\n--@script s\n--@use l\n", "uses itself"),
        ("--@lib a\n--@use b\n--@lib b\n--@use a\n--@script s\n--@use a\n", "uses itself"),
        ("--@script s\n--@script s\n", "script s is defined twice"),
        ("--@lib l\n--@lib l\n", "lib l is defined twice"),
        ("--@script s\n--@uses l\n", "unknown mark: --@uses l"),
        ("--@script two words\n", "unknown mark"),
    ],
)
def test_a_mistake_in_a_lua_file_is_an_error(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        cut_scripts([text])
