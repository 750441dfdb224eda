"""Keeps Celery's task events, one JSON line each on standard output, until it is killed."""

from __future__ import annotations

import json
from typing import Any

from tasks.celery import app


def main() -> None:
    def keep(event: dict[str, Any]) -> None:
        print(json.dumps({"type": event["type"], "uuid": event.get("uuid")}), flush=True)

    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": keep})
        print(json.dumps({"type": "listening"}), flush=True)
        receiver.capture(limit=None, timeout=None, wakeup=False)


if __name__ == "__main__":
    main()
