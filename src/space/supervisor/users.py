"""The system users under which the parts run; made when missing and never removed, as files may be theirs."""

import grp
import pwd
from dataclasses import dataclass

from space.base.commands import run

POSTGRES, API, CONTROLLER, DATAPLANE = "space-postgres", "space-api", "space-controller", "space-dataplane"
# Who may pass through the folder of the database's socket.
DATABASE_GROUP = "space-database"
NAMES = (POSTGRES, API, CONTROLLER, DATAPLANE)


@dataclass(frozen=True)
class Account:
    """A uid and its primary group."""

    name: str
    uid: int
    gid: int


def find(name: str) -> Account | None:
    """Look the user up; ``None`` when there is none."""
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    return Account(name, entry.pw_uid, entry.pw_gid)


async def ensure() -> dict[str, Account]:
    """Make the missing users; give all of them by name."""
    accounts = {}
    for name in NAMES:
        if find(name) is None:
            await run(
                ["useradd", "--system", "--user-group", "--no-create-home", "--home-dir", "/nonexistent",
                 "--shell", "/usr/sbin/nologin", name]
            )  # fmt: skip
        account = find(name)
        assert account is not None
        accounts[name] = account
    return accounts


async def ensure_database_group() -> int:
    """Make the group of the database's clients when missing; give its number."""
    try:
        return grp.getgrnam(DATABASE_GROUP).gr_gid
    except KeyError:
        await run(["groupadd", "--system", DATABASE_GROUP])
        return grp.getgrnam(DATABASE_GROUP).gr_gid
