"""The border: the driver's errors become the catalogue's here, so that nobody else knows the driver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg

from space.domain.errors import InvalidRequest, PlatformUnavailable, StateConflict

# Raised by the trigger `refuse_move` in the first migration.
MOVE_REFUSED = "SP001"


class UniqueConflict(Exception):
    """A row with this key is already there; `constraint` names the rule."""

    def __init__(self, constraint: str) -> None:
        super().__init__(constraint)
        self.constraint = constraint


class MissingReference(Exception):
    """The row points at one that is not there; `constraint` names the rule."""

    def __init__(self, constraint: str) -> None:
        super().__init__(constraint)
        self.constraint = constraint


# The server is going down, coming up, full, or the connection broke.
_UNAVAILABLE = (
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncpg.DiskFullError,
    asyncpg.QueryCanceledError,
    OSError,
    TimeoutError,
)


def is_unavailable(error: BaseException) -> bool:
    """Whether the error says that the database cannot be used now (rather than that a statement is wrong)."""
    if isinstance(error, asyncpg.InterfaceError):
        text = str(error)
        return "clos" in text or "connection" in text
    return isinstance(error, _UNAVAILABLE)


@contextmanager
def border() -> Iterator[None]:
    """Turn what the driver raises inside into the catalogue's errors."""
    try:
        yield
    except asyncpg.UniqueViolationError as error:
        raise UniqueConflict(error.constraint_name or "") from error
    except asyncpg.ForeignKeyViolationError as error:
        raise MissingReference(error.constraint_name or "") from error
    except (asyncpg.UntranslatableCharacterError, asyncpg.CharacterNotInRepertoireError) as error:
        raise InvalidRequest("the text has a character that cannot be stored") from error
    except asyncpg.PostgresError as error:
        if error.sqlstate == MOVE_REFUSED:
            raise StateConflict(str(error)) from error
        if is_unavailable(error):
            raise PlatformUnavailable("the database does not answer") from error
        raise
    except (asyncpg.InterfaceError, OSError) as error:
        if is_unavailable(error):
            raise PlatformUnavailable("the database does not answer") from error
        raise
