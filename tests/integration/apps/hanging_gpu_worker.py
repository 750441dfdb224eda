"""``python -m gpu_worker`` whose encoder ``eye`` hangs on an image that begins with the bytes 1, 2, 3.

``HANG=gil`` in the environment: it hangs in C code that keeps the interpreter's lock.
"""

from __future__ import annotations

import ctypes
import os
import time
from typing import Any

from gpu_worker.pool.worker import consume, node_name
from gpu_worker.service.encode_service import EncodeService
from gpu_worker.service.loading import load_encoders
from gpu_worker.service.torch_threads import set_torch_threads
from tasks.process import process_context

MARK = [1, 2, 3]


class Hanging:
    def __init__(self, encoder: Any) -> None:
        self._encoder = encoder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    def preprocess(self, raws: Any, plans: Any) -> Any:
        if any(raw.flatten()[:3].tolist() == MARK for raw in raws):
            if os.environ.get("HANG") == "gil":
                ctypes.PyDLL(None).sleep(600)
            time.sleep(600)
        return self._encoder.preprocess(raws, plans)


def main() -> None:
    set_torch_threads(1)
    context, node = process_context(), node_name("gpu@%h")
    fleet = {**load_encoders(context.config, "cpu")}
    fleet["eye"] = Hanging(fleet["eye"])  # type: ignore[assignment]
    service = EncodeService(context=context, encoders=fleet, name=node)
    service.warm_up()
    consume(service, node)


if __name__ == "__main__":
    main()
