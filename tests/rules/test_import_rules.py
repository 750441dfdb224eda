"""Import directions: the contracts of pyproject.toml, no cycle, and CPU processes that start without torch.

import-linter reads the imports that are written down. It does not see what a parent package or a library
runs, so each CPU module is also imported in an interpreter of its own in which torch cannot be imported.
"""

from __future__ import annotations

import subprocess
import sys
from graphlib import CycleError, TopologicalSorter

import grimp
import pytest

from tests.rules.source_tree import PACKAGES, ROOT, module_of, python_files

CPU_PACKAGES = ("epd", "api", "workers", "tasks")
#: What a CPU process or the API must never load. They cost seconds and hundreds of megabytes.
HEAVY = ("torch", "transformers", "onnx")

#: Imports modules one after the other with the heavy ones made unimportable; prints what went wrong.
PROBE = """
import importlib, sys
heavy = set(sys.argv[1].split(","))
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in heavy:
            raise ModuleNotFoundError(f"{name} must not be imported here", name=name)
sys.meta_path.insert(0, Refuse())
failed = []
for name in sys.argv[2:]:
    try:
        importlib.import_module(name)
    except Exception as error:
        failed.append(f"{name}: {type(error).__name__}: {error}")
failed += [f"loaded: {name}" for name in sorted(heavy & sys.modules.keys())]
print("\\n".join(failed))
"""


def _modules(*tops: str) -> list[str]:
    found = [module_of(path) for path in python_files(*tops)]
    return [name for name in found if not name.endswith("__main__")]


def _run(*arguments: str, timeout: float = 100) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False)


@pytest.mark.parametrize("package", CPU_PACKAGES)
def test_cpu_modules_start_without_torch(package: str) -> None:
    probed = _run("-c", PROBE, ",".join(HEAVY), *_modules(package))
    assert probed.returncode == 0, probed.stderr
    assert probed.stdout.strip() == ""


@pytest.mark.parametrize("module", ["api.app", "tasks.celery", "tasks.stages", "epd.cli.main"])
def test_what_a_process_starts_with_is_light(module: str) -> None:
    """Alone, so that no other module hides a missing import."""
    probed = _run("-c", PROBE, ",".join(HEAVY), module)
    assert probed.returncode == 0, probed.stderr
    assert probed.stdout.strip() == ""


def test_import_contracts_hold() -> None:
    command = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    linted = _run("-c", command, "--no-cache")
    assert linted.returncode == 0, linted.stdout[-4000:] + linted.stderr[-2000:]


def test_no_import_cycle() -> None:
    tops = [name for name in PACKAGES if (ROOT / name / "__init__.py").is_file()]
    graph = grimp.build_graph(*tops, exclude_type_checking_imports=True, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert _cycle(imports) == []


def _cycle(imports: dict[str, set[str]]) -> list[str]:
    """One cycle of modules, the first named again at its end; empty when there is none."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_the_cycle_finder_finds_one() -> None:
    assert set(_cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()})) == {"b", "c"}
    assert _cycle({"a": {"b"}, "b": {"c"}, "c": set()}) == []
