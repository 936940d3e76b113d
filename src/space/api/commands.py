"""Commands: created here, started and followed on the data plane."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request

from space.api.context import P, Platform, Principal, Who, bearer, once, parse_page, sandbox_of
from space.api.models import CreateCommand, SignalCommand
from space.domain.errors import CommandNotFound, StateConflict, Unauthenticated, WrongTokenKind
from space.domain.ids import is_id, new
from space.store import Record
from space.wire import tokens

router = APIRouter(prefix="/v1/sandboxes/{sandbox_id}/commands", tags=["commands"])
internal = APIRouter(prefix="/internal/v1", include_in_schema=False)


def show_command(row: Record) -> dict[str, Any]:
    """A command on the wire; its environment stays inside."""
    keep = ("id", "sandbox_id", "state", "pid", "exit_code", "signal", "reason", "detach", "labels", "traceparent",
            "request_id", "created_at", "started_at", "finished_at")  # fmt: skip
    spec = {name: row["spec"].get(name) for name in ("command", "cwd", "user", "tty", "stdin", "timeout_ms")}
    return {**{name: row[name] for name in keep}, **spec}


async def _command_of(parts: Platform, who: Principal, sandbox_id: str, command_id: str) -> tuple[Record, Record]:
    sandbox = await sandbox_of(parts, who, sandbox_id)
    row = None
    if is_id(command_id, "cmd"):
        row = await parts.db.fetchrow("get_command", id=command_id, sandbox_id=sandbox_id, org_id=who.org_id)
    if row is None:
        raise CommandNotFound
    return sandbox, row


@router.post("", status_code=201)
async def create_command(sandbox_id: str, body: CreateCommand, request: Request, parts: P, who: Who) -> dict[str, Any]:
    """Create a command; it starts at the first attach, or at once with `detach`."""
    who.need("commands:write")
    async with parts.db.transaction() as tx:
        sandbox = await sandbox_of(tx, who, sandbox_id)

        async def make() -> dict[str, Any]:
            if sandbox["state"] != "running" or sandbox["desired"] != "running":
                raise StateConflict(
                    f"the sandbox is {sandbox['state']}, not running", hint="Wait for its create operation to succeed."
                )
            row = await tx.fetchrow(
                "add_command", id=new("cmd"), org_id=who.org_id, sandbox_id=sandbox_id, spec=body.spec(),
                detach=body.detach, labels=body.labels, traceparent=body.traceparent, request_id=who.request_id,
            )  # fmt: skip
            assert row is not None
            await tx.execute("touch_sandbox", id=sandbox_id)
            await tx.execute(
                "add_event", sandbox_id=sandbox_id, org_id=who.org_id, type="command_created",
                data={"command": row["id"], "request_id": who.request_id},
            )  # fmt: skip
            return {"id": row["id"]}

        kept, again = await once(request, tx, who, make)
    sandbox, row = await _command_of(parts, who, sandbox_id, kept["id"])
    attachment = parts.attachment(row, sandbox["node_id"])
    if body.detach and not again:
        await parts.live("POST", f"/v1/commands/{row['id']}/start", attachment["token"])
        sandbox, row = await _command_of(parts, who, sandbox_id, kept["id"])
    return {"command": show_command(row), "attachment": attachment}


@router.get("")
async def list_commands(  # noqa: PLR0917 (FastAPI passes by name)
    sandbox_id: str, parts: P, who: Who, limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(max_length=300)] = None,
    state: Literal["created", "running", "exited", "failed", "lost"] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """A sandbox's commands, newest first."""
    who.need("sandboxes:read")
    page = parse_page(limit, cursor)
    await sandbox_of(parts, who, sandbox_id)
    rows = await parts.db.fetch("list_commands", sandbox_id=sandbox_id, state=state, **page.params())
    return page.answer(rows, show_command)


@router.get("/{command_id}")
async def get_command(sandbox_id: str, command_id: str, parts: P, who: Who) -> dict[str, Any]:
    """One command: state, exit code or signal, times."""
    who.need("sandboxes:read")
    return show_command((await _command_of(parts, who, sandbox_id, command_id))[1])


@router.post("/{command_id}/attachments", status_code=201)
async def create_attachment(sandbox_id: str, command_id: str, parts: P, who: Who) -> dict[str, Any]:
    """A new token for attaching."""
    who.need("commands:write")
    sandbox, row = await _command_of(parts, who, sandbox_id, command_id)
    return {"attachment": parts.attachment(row, sandbox["node_id"])}


@router.post("/{command_id}/signal")
async def signal_command(sandbox_id: str, command_id: str, body: SignalCommand, parts: P, who: Who) -> dict[str, Any]:
    """Send a signal to a running command."""
    who.need("commands:write")
    sandbox, row = await _command_of(parts, who, sandbox_id, command_id)
    if row["state"] not in ("created", "running") or sandbox["state"] != "running":
        raise StateConflict(f"the command is {row['state']} in a sandbox that is {sandbox['state']}")
    token, _ = parts.sandbox_token(sandbox, ["signal"], 60)
    await parts.live("POST", f"/v1/commands/{command_id}/signal", token, {"signal": body.signal})
    return {"signal": body.signal}


@internal.get("/commands/{command_id}/spec")
async def command_spec(command_id: str, request: Request, parts: P) -> dict[str, Any]:
    """For the data plane: what to start, for the bearer of that command's attachment token."""
    try:
        claims = tokens.verify(bearer(request), parts.key.public_key())
    except tokens.TokenError as error:
        kind = WrongTokenKind if error.code == "wrong_token_kind" else Unauthenticated
        raise kind(error.message) from error
    if not isinstance(claims, tokens.AttachmentClaims) or claims.sub != command_id:
        raise WrongTokenKind("the token is not this command's attachment token")
    row = await parts.db.fetchrow("command_spec", id=command_id, sandbox_id=claims.sbx)
    if row is None:
        raise CommandNotFound
    return {
        "spec": row["spec"], "sandbox": row["sandbox_id"], "state": row["state"], "labels": row["labels"],
        "traceparent": row["traceparent"], "request_id": row["request_id"],
    }  # fmt: skip
