"""``python -m bench.footprint [--json] [--list] [--tree DIR]``: the product files that a request uses.

It starts the stack of a checkout (``epd up``, with the encoders of its ``epd.toml``, on the CPU) with a
profile function in every process. It sends one image by URL, and then the same image again, which the API
answers from the cache, and counts the files in which a function ran, over all processes. It uses only
``epd up`` and the HTTP API, so it measures any checkout, also an older one. The folders of the encoders must
be there.

What counts:

- A product file counts when one of its functions runs while the request's window is open. Lambdas,
  comprehensions and generators are functions. Modules and class bodies are not, and nothing that runs while
  a module is imported counts. Lua and libraries do not count. Lines are all lines of the files that count.
- The window opens just before the request. It closes when the answer is there and nothing new has run for
  2.5 seconds, so that the message is acknowledged and the blob is freed inside it.
- The stack is warm: one image has passed, and was answered from the cache, before anything is counted.
- Heartbeats and idle loops run in every window. What runs without a request is therefore recorded in an
  idle window, by process and call path, and the main figures leave these call paths out. A helper that a
  heartbeat and the request both call still counts, since its call paths differ. A loop does not count if it
  does for the request only what it does in idle. ``..._with_idle`` leaves nothing out.
- The request is repeated with other images, and a function counts when it ran every time. This keeps out
  slow periodic work, which falls into a window by chance.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.cli import finish, make_parser
from bench.footprint.stack import TracedStack, served_images

REPEATS = 3
#: At least so many seconds. Heartbeats come every second, and sweeps every few seconds.
IDLE_SECONDS = 20.0
#: Numbers of windows. Those of the requests follow.
_WARM_UP, _IDLE, _FIRST = 1, 2, 3

#: A process's command and a call path in it.
Call = tuple[str, tuple[str, ...]]


def main() -> None:
    """Measure one checkout, and print."""
    parser = make_parser("footprint", __doc__.split("\n")[0])
    parser.add_argument("--list", action="store_true", help="name the files too")
    parser.add_argument("--tree", type=Path, default=Path(__file__).parents[2], help="checkout to measure")
    options = parser.parse_args()
    tree = options.tree.resolve()
    figures = figures_of(tree, *_windows(tree), with_names=options.list)
    finish(figures, _text(figures), as_json=options.json)


def _windows(tree: Path) -> tuple[set[Call], list[set[Call]], list[set[Call]]]:
    """What ran in the idle window, in each window of a miss, and in each of a cached answer."""
    misses = range(_FIRST, _FIRST + 2 * REPEATS, 2)
    with (
        TemporaryDirectory(prefix="epd-footprint-") as name,
        served_images(Path(name) / "images", REPEATS + 1) as url,
    ):
        stack = TracedStack(tree, Path(name), url)
        try:
            stack.wait_ready()
            with stack.window(_WARM_UP, least=5.0):
                stack.encode("0.jpg", cached=False)
                stack.encode("0.jpg", cached=True)
            with stack.window(_IDLE, least=IDLE_SECONDS):
                pass
            for image, number in enumerate(misses, start=1):
                with stack.window(number):
                    stack.encode(f"{image}.jpg", cached=False)
                with stack.window(number + 1):
                    stack.encode(f"{image}.jpg", cached=True)
            calls = stack.calls()
        finally:
            stack.stop()
    by_window: dict[int, set[Call]] = {}
    for command, records in calls.items():
        for window, *path in records:
            by_window.setdefault(int(window), set()).add((command, tuple(path)))
    ran = [by_window.get(number, set()) for number in range(_FIRST + 2 * REPEATS)]
    return ran[_IDLE], ran[_FIRST::2], ran[_FIRST + 1 :: 2]


def figures_of(
    tree: Path, idle: set[Call], misses: Sequence[set[Call]], cached: Sequence[set[Call]], *, with_names: bool
) -> dict[str, object]:
    """The figures, as JSON takes them; ``with_names`` adds the files by name."""
    named = {"idle": _files(idle)}
    processes: dict[str, dict[str, int]] = {}
    for road, windows in (("miss", misses), ("cached", cached)):
        own = [calls - idle for calls in windows]
        named[road], named[f"{road}_with_idle"] = _files(*own), _files(*windows)
        for command in sorted({command for calls in windows for command, _ in calls}):
            of_process = [{call for call in calls if call[0] == command} for calls in own]
            processes.setdefault(command, {})[road] = len(_files(*of_process))
    figures: dict[str, object] = {"tree": str(tree)}
    for road in ("miss", "cached", "miss_with_idle", "cached_with_idle", "idle"):
        prefix, _, suffix = road.partition("_")
        ending = f"_{suffix}" if suffix else ""
        figures[f"{prefix}_files{ending}"] = len(named[road])
        figures[f"{prefix}_lines{ending}"] = _lines(tree, named[road])
    figures["files_by_process"] = processes
    return figures | ({"names": {road: sorted(files) for road, files in named.items()}} if with_names else {})


def _files(*windows: set[Call]) -> set[str]:
    """The files of the functions that ran in every window."""
    functions = set.intersection(*({path[-1] for _, path in calls} for calls in windows))
    return {function.rpartition(":")[0] for function in functions}


def _lines(tree: Path, files: Iterable[str]) -> int:
    return sum(len((tree / file).read_text("utf-8").splitlines()) for file in files)


def _text(figures: dict[str, object]) -> str:
    lines = [
        f"one image on a miss runs through {figures['miss_files']} files of {figures['miss_lines']} lines "
        f"({figures['miss_files_with_idle']} files with what also runs in idle)",
        f"one cached answer runs through {figures['cached_files']} files of {figures['cached_lines']} lines "
        f"({figures['cached_files_with_idle']} files with what also runs in idle)",
        f"the idle stack runs through {figures['idle_files']} files of {figures['idle_lines']} lines",
    ]
    names = figures.get("names")
    if isinstance(names, dict):
        lines += [f"{road}: {file}" for road, files in names.items() for file in files]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
