"""The entry point of the ``epd`` command. Each subcommand has its own file; errors become one line here."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from epd.cli.cache import cache_app
from epd.cli.doctor import doctor
from epd.cli.encode import encode
from epd.cli.handoff import handoff
from epd.cli.status import models, status
from epd.cli.up import up
from epd.client import Unreachable
from epd.contracts.errors import CallerFault, EpdError, SettingsError
from epd.version import VERSION

#: Exit codes of every command.
EXIT_FAILED, EXIT_USAGE, EXIT_UNREACHABLE = 1, 2, 3

typer_app = typer.Typer(
    help="The encoder tier of Encoder-Prefill-Decode serving: media in, embeddings out.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"epd {VERSION}")
        raise typer.Exit


@typer_app.callback(help=typer_app.info.help)
def _options(
    _: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_print_version, help="Show the version and exit."),
    ] = False,
) -> None:
    """Options of ``epd`` itself."""


for command in (encode, status, models, handoff, doctor, up):
    typer_app.command()(command)
typer_app.add_typer(cache_app, name="cache")


def app() -> None:
    """Run the command line. This is the console script of the package."""
    try:
        typer_app()
    except EpdError as error:
        text = f"[red]{error.code}[/red]: {escape(error.message)}"
        Console(stderr=True).print(text, highlight=False, soft_wrap=True)
        if isinstance(error, Unreachable):
            print("`epd up` starts a stack; --url names another server", file=sys.stderr)
        sys.exit(_exit_code(error))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader of the output is gone, as with `| head`
        sys.stderr.close()
        sys.exit(EXIT_FAILED)
    except OSError as error:  # the user's file, folder or disk: --out, a data folder, standard output
        where = f": {error.filename}" if error.filename else ""
        print(f"failed: {error.strerror or error}{where}", file=sys.stderr)
        sys.exit(EXIT_FAILED)


def _exit_code(error: EpdError) -> int:
    if isinstance(error, Unreachable):
        return EXIT_UNREACHABLE
    return EXIT_USAGE if isinstance(error, CallerFault | SettingsError) else EXIT_FAILED


if __name__ == "__main__":
    app()
