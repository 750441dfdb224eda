"""``python -m bench.encoder.site.gpu_worker_process [--batch-ms M] [--item-ms M]``: simulates the device.

It is ``python -m gpu_worker`` with a simulated encoder in place of those of the config. ``POOL`` of
``bench.encoder.site.device`` has to be in its environment, since Celery reads that when it is first imported.
"""

from __future__ import annotations

import argparse

from bench.encoder.site.device import NAME, DeviceModel, SimulatedEncoder
from gpu_worker.pool.worker import consume, node_name
from gpu_worker.service.encode_service import EncodeService
from gpu_worker.service.torch_threads import set_torch_threads
from tasks.process import process_context


def main() -> None:
    """Warm up and consume, until a signal."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-ms", type=float, default=0.0)
    parser.add_argument("--item-ms", type=float, default=0.0)
    options = parser.parse_args()
    encoder = SimulatedEncoder(DeviceModel(options.batch_ms, options.item_ms))
    set_torch_threads(1)
    node = node_name("gpu@%h")
    service = EncodeService(context=process_context(), encoders={NAME: encoder}, name=node)
    service.warm_up()
    consume(service, node)


if __name__ == "__main__":
    main()
