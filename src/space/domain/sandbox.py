"""The states of a sandbox, what each means, and the moves that are allowed.

The database holds the same pairs and refuses any other move; a test compares the two by trying them all.
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """Observed states."""

    CREATING = "creating"  # asked for; no machine has proved itself yet
    RUNNING = "running"  # adopted: reseeded, named, reachable
    PAUSED = "paused"  # virtual CPUs stopped, memory kept
    SUSPENDING = "suspending"  # a snapshot is being written
    SUSPENDED = "suspended"  # snapshot written, no process left
    WAKING = "waking"  # being restored from its snapshot
    ROLLING_BACK = "rolling_back"  # being put back to a checkpoint or snapshot
    DELETING = "deleting"  # being taken down
    DELETED = "deleted"  # nothing of it is left on any node
    FAILED = "failed"  # stopped by a fault, with a reason; only deleting leads on


# What may still move on by itself or by request, from every state that holds something on a node.
_LIVE = (
    State.CREATING,
    State.RUNNING,
    State.PAUSED,
    State.SUSPENDING,
    State.SUSPENDED,
    State.WAKING,
    State.ROLLING_BACK,
)

MOVES: frozenset[tuple[State, State]] = frozenset(
    {
        (State.CREATING, State.RUNNING),  # the adopt exchange succeeded
        (State.RUNNING, State.PAUSED),
        (State.PAUSED, State.RUNNING),
        (State.RUNNING, State.SUSPENDING),
        (State.SUSPENDING, State.SUSPENDED),
        (State.SUSPENDED, State.WAKING),
        (State.WAKING, State.RUNNING),
        (State.RUNNING, State.ROLLING_BACK),
        (State.PAUSED, State.ROLLING_BACK),
        (State.SUSPENDED, State.ROLLING_BACK),
        (State.ROLLING_BACK, State.RUNNING),
        *((state, State.DELETING) for state in (*_LIVE, State.FAILED)),
        (State.DELETING, State.DELETED),
        *((state, State.FAILED) for state in (*_LIVE, State.DELETING)),
    }
)


def may_move(old: State, new: State) -> bool:
    """Whether the move is allowed; staying is no move."""
    return old == new or (old, new) in MOVES
