"""The shape of the tree: file length, names, docstrings, and who may read the environment or spell a key."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.rules.source_tree import PACKAGES, ROOT, code_files, name_of, python_files, strings_of, tree_of

LONGEST = 300
SHAPELESS = {"utils", "util", "helpers", "helper", "common", "misc"}
READS_ENVIRONMENT = {"epd/settings.py"}
#: May set variables for libraries before they load (thread counts), and read none.
SETS_ENVIRONMENT = {"gpu_worker/__main__.py"}
ENVIRONMENT = {"environ", "environb", "getenv", "getenvb", "putenv"}
SPELLS_KEYS = {"epd/store/keys.py", "tasks/transport/keys.py"}
#: A Redis key as DESIGN 4 spells them. Log texts and URLs do not start like this.
KEY = re.compile(r"^epd:[a-z]")


def _lines(path: Path) -> int:
    return len(path.read_text("utf-8").splitlines())


def test_there_is_a_tree_to_check() -> None:
    assert len(python_files(*PACKAGES)) > 20


def test_no_file_is_over_300_lines() -> None:
    assert {name_of(path): _lines(path) for path in code_files() if _lines(path) > LONGEST} == {}


def test_no_module_is_named_after_nothing() -> None:
    assert [name_of(path) for path in python_files() if path.stem in SHAPELESS] == []


def test_every_module_has_a_docstring() -> None:
    assert [name_of(path) for path in python_files() if not ast.get_docstring(tree_of(path))] == []


#: The one package that users import from by name. Nothing of ours imports below it but commands and demo.
SURFACES = {"epd/client/__init__.py"}


def test_package_files_hold_a_docstring_only() -> None:
    packages = [path for path in python_files(*PACKAGES) if path.name == "__init__.py"]
    full = {name_of(path) for path in packages if len(tree_of(path).body) != 1}
    assert full <= SURFACES


def test_every_package_folder_has_its_file() -> None:
    folders = {path.parent for path in python_files(*PACKAGES)}
    assert [name_of(folder) for folder in sorted(folders) if not (folder / "__init__.py").is_file()] == []


def test_only_settings_reads_the_environment() -> None:
    allowed = READS_ENVIRONMENT | SETS_ENVIRONMENT
    files = [path for path in python_files(*PACKAGES) if name_of(path) not in allowed]
    assert [use for path in files for use in _environment_uses(path)] == []


@pytest.mark.parametrize("name", sorted(SETS_ENVIRONMENT))
def test_who_sets_the_environment_does_not_read_it(name: str) -> None:
    path = ROOT / name
    uses = _environment_uses(path, writes=False) if path.exists() else []
    assert uses == []


def _environment_uses(path: Path, *, writes: bool = True) -> list[str]:
    tree = tree_of(path)
    modules = _names_of_os(tree)
    written = {id(node) for node in _written_nodes(tree)}
    return [
        f"{name_of(path)}:{node.lineno}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom | ast.Attribute)
        and _is_environment(node, modules)
        and (writes or id(node) not in written)
    ]


def _names_of_os(tree: ast.Module) -> set[str]:
    imports = [alias for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    return {alias.asname or alias.name for alias in imports if alias.name == "os"}


def _is_environment(node: ast.ImportFrom | ast.Attribute, modules: set[str]) -> bool:
    """``os.environ`` and its kin, or imported by name. psutil's ``Process.environ()`` is another thing."""
    if isinstance(node, ast.ImportFrom):
        return node.module == "os" and any(alias.name in ENVIRONMENT for alias in node.names)
    return node.attr in ENVIRONMENT and isinstance(node.value, ast.Name) and node.value.id in modules


def _written_nodes(tree: ast.Module) -> list[ast.expr]:
    """``os.environ`` in ``os.environ[...] = ...``, ``os.environ.setdefault(...)`` and ``.pop(...)``."""
    stores = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
    ]
    calls = [
        node.func.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"setdefault", "update", "pop"}
    ]
    return stores + calls


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("import os\nos.environ['A']", True),
        ("import os as o\no.getenv('A')", True),
        ("from os import environ", True),
        ("import psutil\npsutil.Process().environ()", False),
        ("import os\nos.environ['A'] = '1'", False),
        ("import os\nos.environ.setdefault('A', '1')", False),
    ],
)
def test_the_environment_rule_sees_what_it_should(text: str, read: bool) -> None:
    tree = ast.parse(text)
    written = {id(node) for node in _written_nodes(tree)}
    modules = _names_of_os(tree)
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom | ast.Attribute)]
    found = [node for node in nodes if _is_environment(node, modules) and id(node) not in written]
    assert bool(found) is read


def test_redis_keys_are_spelled_in_one_place() -> None:
    files = [path for path in python_files(*PACKAGES) if name_of(path) not in SPELLS_KEYS]
    found = [
        f"{name_of(path)}:{line} {text!r}"
        for path in files
        for line, text in strings_of(path)
        if KEY.match(text)
    ]
    assert found == []


def test_scripts_get_their_keys_from_outside() -> None:
    """A Lua script names no key of its own: a cluster must be told every key (KEYS), or its prefix (ARGV)."""
    scripts = [path for path in code_files() if path.suffix == ".lua"]
    found = [
        name_of(path)
        for path in scripts
        if re.search(r"""^(?!\s*--).*["']epd:""", path.read_text("utf-8"), re.M)
    ]
    assert found == []


def test_nothing_is_left_unfinished() -> None:
    left = re.compile(r"\b(TODO|FIXME|XXX)\b|raise NotImplementedError")
    files = [path for path in code_files() if path != Path(__file__)]
    assert [name_of(path) for path in files if left.search(path.read_text("utf-8"))] == []


def test_test_files_have_names_of_their_own() -> None:
    names = [path.name for path in python_files("tests") if path.name.startswith("test_")]
    assert sorted({name for name in names if names.count(name) > 1}) == []
