"""What nodes report, checked against node and epoch and written in one transaction with its operation and event."""

from space.base.logs import get_logger
from space.domain.errors import SpaceError, StartFailed, StateConflict
from space.domain.sandbox import State, may_move
from space.store import Database, Record, Transaction
from space.wire.node import CommandState, SandboxReport


async def sandbox_report(db: Database, node: str, report: SandboxReport) -> bool:
    """Take a report; False when it is stale or about another node's sandbox."""
    async with db.transaction() as tx:
        row = await tx.fetchrow("ctl_lock_sandbox", sandbox=report.sandbox)
        if row is None:
            return False
        if row["node_id"] != node or row["epoch"] != report.epoch:
            get_logger().warning(
                "stale report refused", action="report_refused", sandbox=report.sandbox, node=node,
                epoch=report.epoch, current=row["epoch"], owner=row["node_id"],
            )  # fmt: skip
            return False
        if report.phase is not None and report.state == "creating":
            await tx.execute("ctl_progress", sandbox=report.sandbox, phase=report.phase)
            return True
        return await _observe(tx, row, report)


async def _observe(tx: Transaction, row: Record, report: SandboxReport) -> bool:
    old, new = State(row["state"]), State(report.state)
    if old is new:
        await tx.execute("ctl_observed", sandbox=report.sandbox)
        return True
    if not may_move(old, new):
        return False
    await move(
        tx, report.sandbox, new, reason=report.reason, phase=report.phase, isolation=report.isolation,
        started_from=report.started_from, timings=report.timings,
    )  # fmt: skip
    return True


async def move(
    tx: Transaction,
    sandbox: str,
    new: State,
    *,
    reason: str | None = None,
    phase: str | None = None,
    isolation: str | None = None,
    started_from: str | None = None,
    timings: dict[str, float] | None = None,
    error: SpaceError | None = None,
) -> None:
    """Move a sandbox, end the operations that this decides, and write the event."""
    await tx.execute(
        "ctl_move", sandbox=sandbox, state=str(new), reason=reason, isolation=isolation, started_from=started_from,
        timings=timings or {},
    )  # fmt: skip
    if new is State.RUNNING:
        await _finish(tx, sandbox, "create", None)
    elif new is State.DELETED:
        await _finish(tx, sandbox, "delete", None)
        await _finish(tx, sandbox, "", StateConflict("the sandbox was deleted before this was done"))
        await tx.execute("ctl_lose_commands", sandbox=sandbox, reason="sandbox_deleted")
    elif new is State.FAILED:
        said = f"{phase}: {reason}" if phase else reason
        await _finish(tx, sandbox, "", error or StartFailed(said))
        await tx.execute("ctl_lose_commands", sandbox=sandbox, reason="sandbox_failed")
    data = {"reason": reason, "phase": phase, "timings": timings}
    await tx.execute(
        "ctl_event", sandbox=sandbox, type=f"sandbox_{new}", data={k: v for k, v in data.items() if v is not None}
    )


async def _finish(tx: Transaction, sandbox: str, kind: str, error: SpaceError | None) -> None:
    state, body = ("succeeded", None) if error is None else ("failed", error.as_json())
    await tx.execute("ctl_finish_operations", sandbox=sandbox, kind=kind, state=state, error=body)


async def command_report(db: Database, node: str, command: CommandState) -> bool:
    """Take a command's state; an end without a wait status is refused."""
    if command.state == "exited" and (command.exit_code is None) == (command.signal is None):
        return False
    async with db.transaction() as tx:
        touched = await tx.execute(
            "ctl_command_report", node=node, sandbox=command.sandbox, command=command.id,
            **command.model_dump(exclude={"id", "sandbox"}),
        )  # fmt: skip
        if touched:
            data = command.model_dump(mode="json", exclude_none=True)
            await tx.execute("ctl_event", sandbox=command.sandbox, type=f"command_{command.state}", data=data)
            await tx.execute("ctl_activity", node=node, sandboxes=[command.sandbox])
    return bool(touched)
