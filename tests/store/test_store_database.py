"""Moves, migrations, wake-ups, locks and the embedded server, on a real PostgreSQL."""

import asyncio
import os
import tempfile
from pathlib import Path

import asyncpg
import pytest

from space.domain.errors import PlatformUnavailable, StateConflict
from space.domain.sandbox import MOVES, State, may_move
from space.store import Database, embedded, migrations, queries
from space.store.errors import border

SANDBOX = """insert into sandboxes (id, org_id, state, template, vcpus, memory_mib, disk_mib, timeout_ms, created_by,
             expires_at) values ($1, 'o', $2, 't', 1, 512, 512, 1000, 'k', now())"""


async def test_the_database_refuses_exactly_what_the_table_refuses(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    await connection.execute("insert into organisations (id) values ('o')")
    allowed = set()
    for old in State:
        for new in State:
            name = f"{old}{new}"
            await connection.execute(SANDBOX, name, old.value)
            try:
                with border():
                    await connection.execute("update sandboxes set state = $2 where id = $1", name, new.value)
            except StateConflict:
                assert not may_move(old, new)
            else:
                assert may_move(old, new)
                if old != new:
                    allowed.add((old, new))
    await connection.close()
    assert allowed == MOVES


async def test_every_query_is_valid_sql(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    for query in queries.load().values():
        assert query.sentence
        await connection.prepare(query.sql)
    await connection.close()


async def test_migrations_apply_once_from_many_processes(postgres: object) -> None:
    async with postgres.database(migrated=False) as dsn:  # type: ignore[attr-defined]
        done = await asyncio.gather(*(migrations.migrate(dsn) for _ in range(4)))
        assert sorted(map(len, done))[:3] == [0, 0, 0]
        assert max(done, key=len) == [migration.name for migration in migrations.load()]
        changed = [migrations.Migration(m.version, m.name, m.sql + " ") for m in migrations.load()]
        with pytest.raises(migrations.MigrationError, match="changed after"):
            await migrations.migrate(dsn, changed)
        with pytest.raises(migrations.MigrationError, match="newer"):
            await migrations.migrate(dsn, [])


async def test_wake_ups_survive_a_broken_connection(dsn: str) -> None:
    db = await Database.open(dsn)
    got: list[str] = []
    await db.listen({"space_sandbox": got.append})
    connection = await asyncpg.connect(dsn)
    await connection.execute("select pg_notify('space_sandbox', 'one')")
    await asyncio.sleep(0.1)
    assert got == ["one"]
    kill = "select pg_terminate_backend(pid) from pg_stat_activity"
    kill += " where pid <> pg_backend_pid() and datname = current_database()"
    await connection.execute(kill)
    async with asyncio.timeout(20):
        while "" not in got:
            await asyncio.sleep(0.1)
    await connection.execute("select pg_notify('space_sandbox', 'two')")
    await asyncio.sleep(0.2)
    assert got[-1] == "two"
    await connection.close()
    await db.close()


async def test_a_lock_has_one_holder(dsn: str) -> None:
    db = await Database.open(dsn)
    async with db.try_advisory_lock("x") as one, db.try_advisory_lock("x") as two:
        assert one is not None
        assert await one.held()
        assert two is None
    await db.close()


async def test_a_transaction_is_all_or_nothing(dsn: str) -> None:
    db = await Database.open(dsn)
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        async with db.transaction() as tx:
            await tx.execute("add_organisation", org_id="x")
            raise ZeroDivisionError
    async with db.transaction() as tx:
        assert await tx.execute("add_organisation", org_id="x") == 1
    await db.close()


async def test_no_server_is_platform_unavailable(tmp_path: Path) -> None:
    with pytest.raises(PlatformUnavailable):
        await Database.open(f"postgresql://space@/space?host={tmp_path}")


async def test_the_embedded_server_comes_back_after_a_crash() -> None:
    with tempfile.TemporaryDirectory(prefix="space-pg-") as folder:
        Path(folder).chmod(0o755)  # pytest's own folders let no other user through
        await _crash_and_come_back(Path(folder))


async def _crash_and_come_back(tmp_path: Path) -> None:
    user = "nobody" if os.getuid() == 0 else None
    first = embedded.EmbeddedPostgres(tmp_path / "data", tmp_path / "socket", user=user)
    await first.start()
    await migrations.migrate(first.dsn)
    assert (tmp_path / "socket").stat().st_mode & 0o777 == 0o700
    second = embedded.EmbeddedPostgres(tmp_path / "data", tmp_path / "socket", user=user)
    await second.start()  # takes over from the one that its supervisor left behind
    assert first.pid is None or await first.wait() == 0
    assert second.pid is not None
    os.kill(second.pid, 9)
    await second.wait()
    await second.start()
    assert await migrations.migrate(second.dsn) == []
    await second.stop()
    await second.stop()
    assert second.pid is None
