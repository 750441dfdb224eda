"""Names: one word for one thing. What ``docs/glossary.md`` lists as retired is the name of nothing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.rules.source_tree import ROOT, name_of, python_files, tree_of

GLOSSARY = ROOT / "docs" / "glossary.md"
#: Names of libraries, which nobody here chose.
FOREIGN = {"soundfile"}


def _sections() -> tuple[str, str]:
    """The glossary's table of terms, and its table of retired words."""
    terms, _, retired = GLOSSARY.read_text("utf-8").partition("## Retired words")
    return terms, retired


def _retired() -> set[str]:
    rows = re.findall(r"^\| ([a-z, ]+) \|", _sections()[1], re.M)
    return {word.strip() for row in rows for word in row.split(",")} - {"retired"}


def _words(identifier: str) -> set[str]:
    """The words of a snake_case or CamelCase name, in lower case, with and without a plural's s."""
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", identifier)
    words = {part.lower() for part in parts}
    return words | {word.removesuffix("s") for word in words}


def _identifiers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute):
            yield node.lineno, node.attr
        elif isinstance(node, ast.arg | ast.keyword) and node.arg:
            yield node.lineno, node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.alias):
            yield node.lineno, node.asname or node.name.rpartition(".")[2]


def _uses(tree: ast.AST, retired: set[str]) -> list[tuple[int, str]]:
    found = {(line, name) for line, name in _identifiers(tree) if name not in FOREIGN}
    return sorted((line, name) for line, name in found if _words(name) & retired)


def test_no_identifier_has_a_retired_word() -> None:
    retired = _retired()
    assert len(retired) > 10
    found = [
        f"{name_of(path)}:{line} {name}"
        for path in python_files()
        for line, name in _uses(tree_of(path), retired)
    ]
    found += [name_of(path) for path in python_files() if _words(path.stem) & retired]
    assert found == []


def test_no_term_of_the_glossary_is_retired() -> None:
    terms = re.findall(r"\*\*([^*]+)\*\*", _sections()[0])
    assert len(terms) > 40
    assert [term for term in terms if set(term.lower().split()) & _retired()] == []


def test_each_term_stands_once() -> None:
    terms = re.findall(r"\*\*([^*]+)\*\*", _sections()[0])
    assert sorted({term for term in terms if terms.count(term) > 1}) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("picture = 1", ["picture"]),
        ("class PictureRows: ...", ["PictureRows"]),
        ("def f(*, small_pictures=1): ...", ["small_pictures"]),
        ("x.flyer_of(1)", ["flyer_of"]),
        ("import soundfile", []),
        ("'a picture'", []),
        ("def image(): ...", []),
    ],
)
def test_the_rule_sees_what_it_should(text: str, found: list[str]) -> None:
    assert [name for _, name in _uses(ast.parse(text), {"picture", "sound", "flyer"})] == found
