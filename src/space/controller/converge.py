"""One step for one sandbox under a row lock, as `domain.plan` says; safe to call from any replica at any time."""

from typing import cast

from space.base.logs import get_logger
from space.controller.reports import move
from space.domain.errors import NoCapacity, SpaceError
from space.domain.placement import Node, Placed, Request, place
from space.domain.plan import Observed, Step, plan
from space.domain.sandbox import State
from space.store import Database, Record, Transaction

# Room appears when another sandbox ends, so waiting can help; longer than this a person would rather know.
CAPACITY_WAIT_S = 20.0
# A template or an isolation appears only when a node connects again, which takes a few seconds.
REFUSAL_WAIT_S = 5.0


async def converge(db: Database, sandbox: str) -> Step:
    """Take steps until nothing is left that this process can do; the last step taken."""
    last = Step.NOTHING
    for _ in range(4):  # expire, begin delete, finish delete: no chain is longer
        async with db.transaction() as tx:
            row = await tx.fetchrow("ctl_lock_sandbox", sandbox=sandbox)
            if row is None:
                return last
            step = plan(_observed(row), row["now"])
            if step in (Step.NOTHING, Step.ASSIGN_RUNNING, Step.ASSIGN_DELETED):
                return last
            if step is Step.PLACE:
                await _place(tx, row)
                return step
            await _take(tx, row, step)
            last = step
    return last


def _observed(row: Record) -> Observed:
    return Observed(State(row["state"]), row["desired"], row["node_id"], row["expires_at"], row["idle_at"])


async def _take(tx: Transaction, row: Record, step: Step) -> None:
    sandbox = row["id"]
    if step is Step.EXPIRE:
        await tx.execute("ctl_want_deleted", sandbox=sandbox)
        why = "timeout" if row["expires_at"] <= row["now"] else "idle_timeout"
        await tx.execute("ctl_event", sandbox=sandbox, type="sandbox_expired", data={"reason": why})
    elif step is Step.BEGIN_DELETE:
        await tx.execute("ctl_begin_delete", sandbox=sandbox)
        await tx.execute("ctl_event", sandbox=sandbox, type="sandbox_deleting", data={})
    elif step is Step.FINISH_DELETE:
        await move(tx, sandbox, State.DELETED)


async def _place(tx: Transaction, row: Record) -> None:
    answer = place(
        Request(row["template"], row["memory_mib"], row["disk_mib"], row["require_isolation"]), await _nodes(tx)
    )
    if isinstance(answer, Placed):
        await tx.execute("ctl_assign", sandbox=row["id"], node=answer.node_id, digest=answer.digest)
        await tx.execute("ctl_event", sandbox=row["id"], type="sandbox_placed", data={"node": answer.node_id})
        return
    patience = CAPACITY_WAIT_S if isinstance(answer, NoCapacity) else REFUSAL_WAIT_S
    if row["age_s"] < patience:
        await tx.execute("ctl_progress", sandbox=row["id"], phase=f"waiting for a node: {answer.detail}")
        return
    await _refuse(tx, row, answer)


async def _refuse(tx: Transaction, row: Record, error: SpaceError) -> None:
    get_logger().warning("not placed", action="not_placed", sandbox=row["id"], code=error.code, reason=error.detail)
    await move(tx, row["id"], State.FAILED, reason=error.detail, error=error)


async def _nodes(tx: Transaction) -> list[Node]:
    rows = await tx.fetch("ctl_lock_nodes")
    use = {row["node_id"]: row for row in await tx.fetch("ctl_node_use")}
    templates: dict[str, dict[str, str]] = {}
    for row in await tx.fetch("ctl_node_templates"):
        templates.setdefault(row["node_id"], {})[row["name"]] = row["digest"]
    return [_node(row, use.get(row["id"]), templates.get(row["id"], {})) for row in rows]


def _node(row: Record, use: Record | None, templates: dict[str, str]) -> Node:
    capacity = cast("dict[str, int]", row["capacity"])
    return Node(
        id=row["id"],
        ready=row["state"] == "ready",
        isolation=row["machine"].get("isolation"),
        memory_mib=capacity.get("memory_mib", 0),
        disk_mib=capacity.get("disk_mib", 0),
        max_sandboxes=capacity.get("max_sandboxes", 0),
        used_memory_mib=use["memory_mib"] if use else 0,
        used_disk_mib=use["disk_mib"] if use else 0,
        sandboxes=use["sandboxes"] if use else 0,
        templates=templates,
    )
