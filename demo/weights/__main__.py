"""``python -m demo.weights [FOLDER]``: creates the model folders, by default under ``.epd/models``."""

from __future__ import annotations

import sys
from pathlib import Path

from demo.weights.ensure import ensure_weights
from epd.contracts.errors import SettingsError


def main() -> int:
    """Create the folders. Exit code 0 when all of them are there."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(".epd/models")
    try:
        ensure_weights(root, say=lambda text: print(text, flush=True))
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
