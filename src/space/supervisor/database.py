"""The database side of `space up`: embedded server or the given one, migrations, first organisation, key and node."""

import hashlib
import secrets

from space.base.settings import Settings
from space.domain import ids
from space.store.embedded import EmbeddedPostgres
from space.store.migrations import migrate
from space.store.pool import Database
from space.supervisor.layout import Places, write_private
from space.supervisor.users import API, CONTROLLER, DATABASE_GROUP, POSTGRES

ORG = "default"


def embedded(places: Places) -> EmbeddedPostgres:
    """Describe this host's own server; nothing is started yet."""
    return EmbeddedPostgres(
        places.state / "postgres" / "data",
        places.run / "postgres",
        user=POSTGRES,
        clients=(API, CONTROLLER),
        group=DATABASE_GROUP,
    )


async def start(settings: Settings, places: Places) -> tuple[str, EmbeddedPostgres | None]:
    """Start the embedded server unless another was given; bring the schema up to date. Gives the parts' address."""
    server = None
    if settings.database_url is not None:
        dsn = settings.database_url.get_secret_value()
    else:
        server = embedded(places)
        await server.start()
        dsn = server.dsn
    await migrate(dsn)
    return dsn, server


async def ensure_operator_key(database: Database, places: Places) -> str:
    """Give the operator's key, making one the first time or when the database does not know the kept one."""
    await database.execute("supervisor_ensure_organisation", org=ORG)
    kept = places.operator_key
    if kept.exists():
        key = kept.read_text().strip()
        if await database.fetchval("supervisor_key_is_valid", sha256=_hash(key.removeprefix("space_"))):
            return key
    digits = secrets.token_hex(20)
    await database.execute("supervisor_add_operator_key", id=ids.new("key"), org=ORG, sha256=_hash(digits))
    write_private(kept, f"space_{digits}\n".encode())
    return f"space_{digits}"


async def enrolment_token(database: Database, node: str, *, has_certificate: bool) -> str | None:
    """Give a one-time token when this node has no certificate that the database knows, else nothing."""
    if has_certificate and await database.fetchval("supervisor_node_enrolled", name=node):
        return None
    token = secrets.token_hex(32)
    await database.execute("supervisor_expect_node", id=ids.new("node"), name=node, sha256=_hash(token))
    return token


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
