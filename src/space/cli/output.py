"""Printing: tables for people, JSON for programs, a spinner for what takes over a second. Data goes to stdout alone."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.table import Table

err = Console(stderr=True, highlight=False, soft_wrap=True)
out = Console(highlight=False, soft_wrap=True)


def show_json(value: object) -> None:
    """Print one JSON document."""
    sys.stdout.write(json.dumps(value, indent=2, default=str) + "\n")


def show_table(items: Iterable[dict[str, Any]], columns: Sequence[str]) -> None:
    """Print the named fields of each item; a missing one is a dash."""
    table = Table(box=None, pad_edge=False, show_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.upper(), no_wrap=True)
    for item in items:
        table.add_row(*(_cell(item.get(column)) for column in columns))
    out.print(table)


def show_fields(item: dict[str, Any]) -> None:
    """Print one thing, a field a line."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, value in item.items():
        table.add_row(name, _cell(value))
    out.print(table)


def _cell(value: object) -> str:
    if value is None or value == "":
        return "-"
    text = json.dumps(value, default=str) if isinstance(value, dict | list) else str(value)
    # What a guest or another user chose must not move this terminal's cursor, nor be read as our markup.
    return "".join(c if c.isprintable() else "?" for c in text).replace("[", "\\[")


@contextmanager
def progress(text: str, *, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Show a spinner on a terminal; elsewhere say nothing. Gives a function that changes the text."""
    if quiet or not err.is_terminal:
        yield lambda _text: None
        return
    with err.status(text) as status:
        yield lambda more: status.update(f"{text}: {more}")
