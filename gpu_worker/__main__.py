"""``python -m gpu_worker [--devices auto|cpu|0,1,..|cpu:N]``: the batching encode worker, one per device."""

from __future__ import annotations

import os
import sys

from epd.contracts.errors import EpdError, SettingsError
from epd.settings import read_settings
from epd.telemetry.logging import configure_logging
from gpu_worker.options import child_arguments, parse_options
from gpu_worker.siblings import run_siblings

#: The exit status of a failed start that may succeed later, as when the store was down (sysexits.h).
_FAILED_START = os.EX_UNAVAILABLE


def main() -> None:
    """Load, warm up, and only then consume. A failed start writes its reason to stderr and exits."""
    # Celery reads this only once, when it is first imported.
    os.environ["CELERY_CUSTOM_WORKER_POOL"] = "gpu_worker.pool.batch_pool:BatchPool"
    try:
        options = parse_options(sys.argv[1:])
        configure_logging(read_settings().log_level)
        if len(options.devices) > 1:
            sys.exit(run_siblings(child_arguments(options)))
        from gpu_worker.pool.worker import run_worker  # loads torch and Celery

        run_worker(options)
    except EpdError as error:
        sys.stderr.write(f"gpu_worker: {error}\n")
        # EX_CONFIG (78) tells a supervisor that a start with these settings can never succeed.
        sys.exit(os.EX_CONFIG if isinstance(error, SettingsError) else _FAILED_START)


if __name__ == "__main__":
    main()
