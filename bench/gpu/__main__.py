"""``python -m bench.gpu [--json] [--only SECTION] [--budget SECONDS]``: the figures of one CUDA device.

``--device cpu --tiny`` runs the same code on the processor at tiny sizes: a self-test, no figure of a GPU.
Without a CUDA device the status is 2; it is 1 where a case failed. Each case is told on standard error as
soon as it is measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from bench.gpu.report import SECTIONS, Course, as_text, measure
from bench.gpu.target import Target, cuda_target, self_test_target
from gpu_worker.encoders.loading import resolve_device
from gpu_worker.service.torch_threads import set_torch_threads

_NO_DEVICE = "bench.gpu: this machine has no CUDA device; nothing was measured\n"
_SHM = Path("/dev/shm")
_BUDGET = 300.0  #: seconds


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure once, and print; without ``arguments`` by those of the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON document instead of tables")
    parser.add_argument("--only", action="append", choices=SECTIONS, help="this section; may be repeated")
    parser.add_argument("--budget", type=float, default=_BUDGET, help="seconds after which no case is begun")
    parser.add_argument("--device", default="cuda:0", help="a CUDA device; cpu with --tiny")
    parser.add_argument("--tiny", action="store_true", help="self-test at tiny sizes, on the processor alone")
    options = parser.parse_args(arguments)
    if options.tiny != (options.device == "cpu"):
        parser.error("--device cpu and --tiny go together: they are a self-test, not a measurement")
    target = _target(options.device)
    set_torch_threads(1 if target.self_test else 0)
    course = Course(options.budget)
    with tempfile.TemporaryDirectory(prefix="epd-bench-", dir=_SHM if _SHM.is_dir() else None) as folder:
        document = measure(target, course, options.only or SECTIONS, Path(folder))
    sys.stdout.write(json.dumps(document) + "\n" if options.json else as_text(document))
    sys.exit(1 if course.failed else 0)


def _target(device: str) -> Target:
    if device == "cpu":
        return self_test_target()
    if not torch.cuda.is_available():
        sys.stderr.write(_NO_DEVICE)
        sys.exit(2)
    return cuda_target(resolve_device(device))


if __name__ == "__main__":
    main()
