"""The tree as the rule tests see it: files that git tracks or would track, parsed once."""

from __future__ import annotations

import ast
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: What is installed and serves. The rest of the packages shows or measures it.
PRODUCT = ("epd", "tasks", "workers", "gpu_worker", "api")
PACKAGES = (*PRODUCT, "demo", "bench", "examples")
CODE_ENDINGS = {".py", ".lua", ".sh", ".html", ".css", ".js"}


@cache
def code_files() -> tuple[Path, ...]:
    """Every code file of ours."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=30)
        names = listed.stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):  # an unpacked archive has no git
        names = [
            str(path.relative_to(ROOT)) for top in (*PACKAGES, "tests") for path in (ROOT / top).rglob("*")
        ]
    paths = (ROOT / name for name in names if not name.startswith("shared/"))
    return tuple(sorted(path for path in paths if path.suffix in CODE_ENDINGS and path.is_file()))


def python_files(*tops: str) -> list[Path]:
    """The Python files, of all the tree or below the named top-level folders."""
    files = [path for path in code_files() if path.suffix == ".py"]
    return [path for path in files if not tops or path.relative_to(ROOT).parts[0] in tops]


def name_of(path: Path) -> str:
    """The path as a person names it."""
    return path.relative_to(ROOT).as_posix()


def module_of(path: Path) -> str:
    """The dotted module name of a Python file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree_of(path: Path) -> ast.Module:
    """The file's syntax tree."""
    return ast.parse(path.read_text("utf-8"), str(path))


def strings_of(path: Path) -> list[tuple[int, str]]:
    """String constants with their lines, docstrings and other bare strings left out."""
    tree = tree_of(path)
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        (node.lineno, node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in bare
    ]
