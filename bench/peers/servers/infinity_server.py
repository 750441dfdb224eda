"""``python -m bench.peers.servers.infinity_server ... -- v2 OPTIONS``: infinity-emb's own command line.

With ``--device-ms`` its model's forward is replaced by sleep, and the processor in front of it by a decode.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from infinity_emb import cli
from infinity_emb.transformer.vision.torch_vision import TIMM

from bench.peers.servers.encoder import Options, SimulatedEncoder, read_options


def main() -> None:
    """Serve until a signal."""
    split = sys.argv.index("--")
    options = read_options(sys.argv[1:split])
    torch.set_num_threads(options.threads)
    if options.device_ms:
        _simulate(options, options.device_ms)
    sys.argv[1:] = sys.argv[split + 1 :]
    cli.cli()


def _simulate(options: Options, device_ms: tuple[float, float]) -> None:
    encoder = SimulatedEncoder(*device_ms, options.lock)

    def decode(_: TIMM, items: Sequence[Any]) -> list[bool]:
        """Texts come only at warm-up."""
        return [not isinstance(item, str) and bool(item.convert("RGB")) for item in items]

    def encode(_: TIMM, items: Sequence[Any]) -> list[bytes]:
        return encoder.encode(items)

    def finish(_: TIMM, rows: Sequence[bytes]) -> list[Any]:
        return [np.frombuffer(row, np.float32) for row in itertools.chain(rows)]

    TIMM.encode_pre, TIMM.encode_core, TIMM.encode_post = decode, encode, finish


if __name__ == "__main__":
    main()
