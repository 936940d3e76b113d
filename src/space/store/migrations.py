"""Migrations: numbered files, each in one transaction, recorded with a checksum, under an advisory lock."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from space.store.errors import border
from space.store.pool import connect, lock_number

MIGRATIONS_DIR = Path(__file__).parent / "migrations"

_FILE = re.compile(r"(\d{4})_\w+\.sql")
_TABLE = """create table if not exists schema_migrations (
    version integer primary key, name text not null, sha256 text not null,
    applied_at timestamptz not null default now())
"""


class MigrationError(Exception):
    """The database was migrated by other files than these."""


@dataclass(frozen=True)
class Migration:
    """One file."""

    version: int
    name: str
    sql: str

    @property
    def sha256(self) -> str:
        """Of the text, in hex."""
        return hashlib.sha256(self.sql.encode()).hexdigest()


def load(folder: Path = MIGRATIONS_DIR) -> list[Migration]:
    """The files in order; MigrationError unless they are numbered 1, 2, 3, …"""
    found = []
    for path in sorted(folder.glob("*.sql")):
        match = _FILE.fullmatch(path.name)
        if match is None:
            raise MigrationError(f"{path.name} is not named NNNN_what_it_does.sql")
        found.append(Migration(int(match[1]), path.stem, path.read_text(encoding="utf-8")))
    if [migration.version for migration in found] != list(range(1, len(found) + 1)):
        raise MigrationError(f"migrations are not numbered 1, 2, 3, … without gaps: {[m.name for m in found]}")
    return found


async def migrate(dsn: str, migrations: list[Migration] | None = None) -> list[str]:
    """Apply what is missing and return its names; safe from many processes at once."""
    wanted = load() if migrations is None else migrations
    with border():
        connection = await connect(dsn)
        try:
            await connection.execute("select pg_advisory_lock($1)", lock_number("migrations"))
            return await _apply(connection, wanted)
        finally:
            await connection.close()  # lets the lock go


async def _apply(connection: asyncpg.Connection[asyncpg.Record], wanted: list[Migration]) -> list[str]:
    await connection.execute(_TABLE)
    rows = await connection.fetch("select version, name, sha256 from schema_migrations")
    applied = {row["version"]: (row["name"], row["sha256"]) for row in rows}
    newer = applied.keys() - {migration.version for migration in wanted}
    if newer:
        raise MigrationError(f"the database is at version {max(newer)}, newer than this SPACE; install that version")
    done = []
    for migration in wanted:
        record = applied.get(migration.version)
        if record is None:
            async with connection.transaction():
                await connection.execute(migration.sql)
                await connection.execute(
                    "insert into schema_migrations (version, name, sha256) values ($1, $2, $3)",
                    migration.version, migration.name, migration.sha256,
                )  # fmt: skip
            done.append(migration.name)
        elif record[1] != migration.sha256:
            raise MigrationError(f"{migration.name} was changed after it was applied; write a new migration instead")
    return done
