"""What to do next for one sandbox: a pure function of what is wanted and what is seen.

The controller calls it in every pass, so it must reach the same end whatever was lost on the way.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Literal

from space.domain.sandbox import State


class Step(StrEnum):
    """The next step."""

    NOTHING = "nothing"
    PLACE = "place"  # choose a node and assign it there
    ASSIGN_RUNNING = "assign_running"  # (re)send the assignment: running
    EXPIRE = "expire"  # set desired to deleted: its time is over
    BEGIN_DELETE = "begin_delete"  # move to deleting, then assign deleted
    ASSIGN_DELETED = "assign_deleted"  # (re)send the assignment: deleted
    FINISH_DELETE = "finish_delete"  # nothing can be left: mark deleted


@dataclass(frozen=True)
class Observed:
    """One sandbox as the database shows it now."""

    state: State
    desired: Literal["running", "deleted"]
    node_id: str | None
    expires_at: datetime
    idle_at: datetime | None = None  # when idleness would end it; None while a command runs or no idle timeout is set
    node_gone: bool = False  # the node was removed for good, so nothing of the sandbox can be left there


def plan(seen: Observed, now: datetime) -> Step:
    """The next step for this sandbox."""
    if seen.state is State.DELETED:
        return Step.NOTHING
    if seen.desired == "deleted":
        return _plan_delete(seen)
    # A failed sandbox stays readable until its deadline, then it goes like any other.
    if seen.expires_at <= now or (seen.idle_at is not None and seen.idle_at <= now):
        return Step.EXPIRE
    if seen.state is State.CREATING:
        return Step.PLACE if seen.node_id is None else Step.ASSIGN_RUNNING
    return Step.NOTHING


def _plan_delete(seen: Observed) -> Step:
    if seen.state is not State.DELETING:
        return Step.BEGIN_DELETE
    if seen.node_id is None or seen.node_gone:
        return Step.FINISH_DELETE
    return Step.ASSIGN_DELETED
