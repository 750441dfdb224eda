"""``python -m bench.gpu [--json] [--only SECTION] [--budget SECONDS]``: the figures of one CUDA device.

``--device cpu --tiny`` runs the same code on the CPU at tiny sizes: a self-test that measures no GPU.
Without a CUDA device the status is 2; it is 1 if a case failed. Each case is printed on standard error as
soon as it is measured.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch

from bench.cli import finish, folder_in_memory, make_parser
from bench.gpu.report import SECTIONS, Course, as_text, measure
from bench.gpu.target import Target, cuda_target, self_test_target
from gpu_worker.encoders.loading import resolve_device
from gpu_worker.service.torch_threads import set_torch_threads

_NO_DEVICE = "bench.gpu: this machine has no CUDA device; nothing was measured\n"
_BUDGET = 300.0  #: seconds


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure once, and print. ``arguments`` default to those of the command line."""
    parser = make_parser("gpu", __doc__)
    parser.add_argument(
        "--only", action="append", choices=SECTIONS, help="only this section; may be repeated"
    )
    parser.add_argument(
        "--budget", type=float, default=_BUDGET, help="seconds after which no case is started"
    )
    parser.add_argument("--device", default="cuda:0", help="a CUDA device; cpu with --tiny")
    parser.add_argument("--tiny", action="store_true", help="self-test at tiny sizes, on the CPU only")
    options = parser.parse_args(arguments)
    if options.tiny != (options.device == "cpu"):
        parser.error("--device cpu and --tiny go together: they are a self-test, not a measurement")
    target = _target(options.device)
    set_torch_threads(1 if target.self_test else 0)
    course = Course(options.budget)
    with folder_in_memory("epd-bench-") as folder:
        document = measure(target, course, options.only or SECTIONS, folder)
    finish(document, as_text(document), as_json=options.json, passed=not course.failed)


def _target(device: str) -> Target:
    if device == "cpu":
        return self_test_target()
    if not torch.cuda.is_available():
        sys.stderr.write(_NO_DEVICE)
        sys.exit(2)
    return cuda_target(resolve_device(device))


if __name__ == "__main__":
    main()
