"""The worker under test: ``python -m gpu_worker`` with the encoder that costs nothing in place of real ones.

Started as ``python -m bench.ceiling.gpu_worker_process`` with the environment that
``bench.ceiling.measurement`` sets. Everything except the encoder is production code.
"""

from __future__ import annotations

from bench.ceiling.encoder import NAME, ZeroCostEncoder
from gpu_worker.pool.worker import consume, node_name
from gpu_worker.service.encode_service import EncodeService
from gpu_worker.service.torch_threads import set_torch_threads
from tasks.process import process_context


def main() -> None:
    """Warm up and consume, until a signal."""
    set_torch_threads(1)
    node = node_name("gpu@%h")
    service = EncodeService(context=process_context(), encoders={NAME: ZeroCostEncoder()}, name=node)
    service.warm_up()
    consume(service, node)


if __name__ == "__main__":
    main()
