"""The ``epd`` command. Each command lives in its own file; errors end here as one clear line."""

from __future__ import annotations

import sys

import typer
from rich.console import Console

from epd.cli.doctor import doctor
from epd.cli.encode import encode
from epd.cli.status import models, status
from epd.cli.up import up
from epd.client import Unreachable
from epd.contracts.errors import CallerFault, EpdError, SettingsError

#: Exit codes of every command.
EXIT_FAILED, EXIT_USAGE, EXIT_UNREACHABLE = 1, 2, 3

typer_app = typer.Typer(
    help="The encoder tier of Encoder-Prefill-Decode serving: media in, embeddings out.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (encode, status, models, doctor, up):
    typer_app.command()(command)


def app() -> None:
    """Run the command line; the console script of the package."""
    try:
        typer_app()
    except EpdError as error:
        Console(stderr=True).print(f"[red]{error.code}[/red]: {error.message}", highlight=False, markup=True)
        sys.exit(_exit_code(error))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output went away, as `| head` does
        sys.stderr.close()
        sys.exit(EXIT_FAILED)


def _exit_code(error: EpdError) -> int:
    if isinstance(error, Unreachable):
        return EXIT_UNREACHABLE
    return EXIT_USAGE if isinstance(error, CallerFault | SettingsError) else EXIT_FAILED


if __name__ == "__main__":
    app()
