"""The ``space`` command: its tree of commands and how an error is told."""

import json
import sys
from typing import Annotated

import typer

from space.base.commands import CommandError
from space.base.settings import SettingsError
from space.cli import host, resources, run
from space.cli.output import err
from space.cli.problems import CliError

app = typer.Typer(
    name="space",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="A disposable virtual machine for every agent task, keys outside it.",
)
app.command()(host.up)
app.command()(host.down)
app.command()(host.status)
app.command(context_settings={"ignore_unknown_options": False})(run.run)
app.command()(run.shell)
app.add_typer(resources.sandbox_app, name="sandbox")
app.add_typer(resources.command_app, name="command")
app.add_typer(resources.template_app, name="template")
app.add_typer(resources.key_app, name="key")
app.add_typer(resources.node_app, name="node")
app.command()(host.doctor)
app.command()(host.logs)


@app.callback()
def options(debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False) -> None:
    """Take the options that stand before the command."""
    _debug.append(debug)


_debug: list[bool] = []


def main() -> None:
    """Run, and tell an error by message and hint; the traceback only with ``--debug``."""
    try:
        app()
    except CliError as error:
        _tell(error.message, error.hint, error.code)
        if any(_debug):
            raise
        sys.exit(error.exit_code)
    except (SettingsError, CommandError) as error:
        _tell(str(error), "", type(error).__name__)
        if any(_debug):
            raise
        sys.exit(1)
    except BrokenPipeError:
        # The reader of our output went away, as `head` does.
        sys.stderr.close()
        sys.exit(1)


def _tell(message: str, hint: str, code: str) -> None:
    if "--json" in sys.argv:
        sys.stdout.write(json.dumps({"error": {"code": code, "message": message, "hint": hint}}) + "\n")
    err.print(f"space: {message}", markup=False, style="red" if err.is_terminal else None)
    if hint:
        err.print(f"  try: {hint}", markup=False)


if __name__ == "__main__":
    main()
