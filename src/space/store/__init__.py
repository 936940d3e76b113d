"""PostgreSQL: the only package with the driver. Named SQL, migrations, typed rows, wake-ups.

From: api, controller
To: PostgreSQL
"""

from space.store.errors import MissingReference, UniqueConflict
from space.store.pool import Database, Lock, Record, Transaction

__all__ = ["Database", "Lock", "MissingReference", "Record", "Transaction", "UniqueConflict"]
