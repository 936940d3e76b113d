"""Named SQL: every query stands in `sql/*.sql` with a name and a sentence, and is called by that name.

A file is a row of blocks: `-- name: get_sandbox`, a comment line that says what it does, then SQL with `:parameters`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SQL_DIR = Path(__file__).parent / "sql"

_NAME = re.compile(r"^-- name: (\w+)[ \t]*$", re.MULTILINE)
# `:name` but neither `::cast` nor the minutes of '12:30'.
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_][a-z0-9_]*)")


@dataclass(frozen=True)
class Query:
    """One named query, with its parameters in the order of `$1`, `$2`, …"""

    name: str
    sentence: str
    sql: str
    parameters: tuple[str, ...]

    def arguments(self, given: dict[str, object]) -> list[object]:
        """The values in order; TypeError for a missing or an unknown one, as for a function."""
        if given.keys() != set(self.parameters):
            raise TypeError(f"query {self.name} takes {sorted(self.parameters)}, got {sorted(given)}")
        return [given[name] for name in self.parameters]


def parse(text: str) -> Iterable[Query]:
    """The queries of one file; ValueError when one has no sentence."""
    parts = _NAME.split(text)
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        lines = body.strip().splitlines()
        comments = []
        while lines and lines[0].startswith("--"):
            comments.append(lines.pop(0).removeprefix("--").strip())
        if not comments:
            raise ValueError(f"query {name} has no sentence saying what it does")
        yield _compile(name, " ".join(comments), "\n".join(lines).strip().removesuffix(";"))


def _compile(name: str, sentence: str, sql: str) -> Query:
    order: list[str] = []

    def place(match: re.Match[str]) -> str:
        if match[1] not in order:
            order.append(match[1])
        return f"${order.index(match[1]) + 1}"

    return Query(name, sentence, _PARAMETER.sub(place, sql), tuple(order))


@cache
def load() -> dict[str, Query]:
    """All queries by name; ValueError when a name is used twice."""
    found: dict[str, Query] = {}
    for path in sorted(SQL_DIR.glob("*.sql")):
        for query in parse(path.read_text(encoding="utf-8")):
            if query.name in found:
                raise ValueError(f"two queries are named {query.name}")
            found[query.name] = query
    return found
