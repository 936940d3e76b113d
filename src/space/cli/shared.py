"""What every command of the command line needs: its options and a connection."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from space.base.settings import Settings
from space.cli import context
from space.cli.api_client import Api

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]


@contextmanager
def connect() -> Iterator[Api]:
    """Open the connection that the environment or the context file describes."""
    api = Api(context.load(Settings.load()))
    try:
        yield api
    finally:
        api.close()


def pairs(values: list[str], what: str) -> dict[str, str]:
    """Read ``NAME=VALUE`` options."""
    found = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{value!r} is not NAME=VALUE", param_hint=what)
        found[name] = text
    return found
