"""The shape of the product: folders of a readable size, no crumbs of files, nothing that only tests use."""

from __future__ import annotations

import statistics
from collections import defaultdict
from functools import cache
from pathlib import Path

import grimp

from tests.rules.source_tree import PACKAGES, PRODUCT, ROOT, code_files, module_of, name_of, python_files

#: Bounds of the median file, in lines.
MEDIAN = (100, 180)
MOST_ENTRIES = 15
#: A file below this, with one importer, belongs into that importer; so many in a hundred may stay.
SMALL, MOST_SMALL_PERCENT = 80, 8
#: Modules that a program or a library starts by their name.
ENTRY_POINTS = {
    "api.app",
    "epd.cli.main",
    "tasks.poison",
    "tasks.stages",
    "tasks.worker.events",
    "tasks.worker.pool",
    "workers.decode.child",
    "tasks.worker.lifecycle",
}


@cache
def _graph() -> grimp.ImportGraph:
    return grimp.build_graph(*PACKAGES, exclude_type_checking_imports=False, cache_dir=None)


def _product_files() -> list[Path]:
    return [path for path in python_files(*PRODUCT) if path.name != "__init__.py"]


def _importers(path: Path) -> set[str]:
    return set(_graph().find_modules_that_directly_import(module_of(path)))


def _lines(path: Path) -> int:
    return len(path.read_text("utf-8").splitlines())


def test_the_median_file_is_one_idea() -> None:
    least, most = MEDIAN
    assert least <= statistics.median(map(_lines, _product_files())) <= most


def test_no_folder_is_crowded() -> None:
    entries: dict[str, set[str]] = defaultdict(set)
    for path in code_files():
        parts = path.relative_to(ROOT).parts
        if parts[0] not in PRODUCT or path.name == "__init__.py":
            continue
        for depth in range(1, len(parts)):
            entries["/".join(parts[:depth])].add(parts[depth])
    assert {folder: len(names) for folder, names in entries.items() if len(names) > MOST_ENTRIES} == {}


def test_small_files_with_one_importer_are_few() -> None:
    files = [path for path in _product_files() if path.name not in {"__main__.py", "routes.py", "route.py"}]
    product = {module_of(path) for path in python_files(*PRODUCT)}
    small = [name_of(path) for path in files if _lines(path) < SMALL and len(_importers(path) & product) == 1]
    assert 100 * len(small) <= MOST_SMALL_PERCENT * len(files), small


def test_every_product_module_is_used_by_the_product() -> None:
    """What only tests and benchmarks import is no product."""
    product = {module_of(path) for path in python_files(*PRODUCT)}
    files = [path for path in _product_files() if path.name != "__main__.py"]
    unused = {module_of(path) for path in files if not _importers(path) & product}
    # Encoder families are imported by name, from the registry.
    families = {name for name in unused if name.startswith("gpu_worker.encoders.")}
    assert unused - families - ENTRY_POINTS == set()


def test_the_product_imports_no_tests() -> None:
    texts = {path: path.read_text("utf-8") for path in python_files(*PRODUCT)}
    found = [
        name_of(path)
        for path, text in texts.items()
        if any(line.lstrip().startswith(("from tests", "import tests")) for line in text.splitlines())
    ]
    assert found == []
