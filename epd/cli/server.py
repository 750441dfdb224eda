"""Which server a command uses, and the option that names it."""

from __future__ import annotations

from typing import Annotated

import typer

from epd.client import Client
from epd.settings import settings
from epd.stack.parts import reachable

UrlOption = Annotated[
    str | None, typer.Option("--url", help="The API's URL; default from EPD_API_HOST and EPD_API_PORT.")
]


def connect(url: str | None, *, timeout: float = 60.0) -> Client:
    """A client for the given URL, or for the host and port of the settings."""
    return Client(url or default_url(), timeout=timeout)


def default_url() -> str:
    """The URL of the API in the settings."""
    return f"http://{reachable(settings().api_host)}:{settings().api_port}"
