"""Sandboxes and operations: desired state in, operations out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import StreamingResponse

from space.api.context import LOOK_AGAIN_S, P, Platform, Principal, Who, monotonic, once, parse_page, sandbox_of
from space.api.models import CreateSandbox, CreateToken, PatchSandbox
from space.domain import shapes
from space.domain.durations import format_ms, parse_ms
from space.domain.errors import (
    GenerationConflict,
    InvalidRequest,
    IsolationUnavailable,
    NotInThisVersion,
    OperationNotFound,
    QuotaExceeded,
    SandboxNotFound,
    StateConflict,
    TemplateNotFound,
)
from space.domain.ids import is_id, new
from space.domain.sandbox import State
from space.store import Record, Transaction

router = APIRouter(prefix="/v1", tags=["sandboxes"])

# One organisation's share of a deployment, until quotas are settings of their own.
MAX_LIVE_SANDBOXES = 200
# A proxy in between gives up after a minute; a client simply asks again.
MAX_WAIT_S = 60.0
FOLLOW_EVERY_S = 0.5

Limit = Annotated[int, Query(ge=1, le=200)]
Cursor = Annotated[str | None, Query(max_length=300)]


def show_sandbox(row: Record) -> dict[str, Any]:
    """A sandbox on the wire."""
    keep = ("id", "name", "state", "reason", "desired", "generation", "template", "template_digest", "metadata",
            "isolation", "started_from", "timings", "on_timeout", "created_at", "observed_at", "running_at",
            "expires_at", "last_activity_at", "deleted_at")  # fmt: skip
    idle = row["idle_timeout_ms"]
    return {
        **{name: row[name] for name in keep}, "node": row["node_id"], "network": {"mode": "none"},
        "resources": {name: row[name] for name in ("vcpus", "memory_mib", "disk_mib")},
        "timeout": format_ms(row["timeout_ms"]), "idle_timeout": format_ms(idle) if idle else None,
    }  # fmt: skip


def show_operation(row: Record) -> dict[str, Any]:
    """An operation on the wire."""
    keep = ("id", "kind", "state", "sandbox_id", "progress", "error", "request_id", "created_at", "finished_at")
    return {name: row[name] for name in keep}


def _bounded(parts: Platform, text: str | None, field: str) -> int | None:
    if text is None:
        return None
    value = parse_ms(text)
    if value > float(parts.settings.max_timeout) * 1000:
        raise InvalidRequest(f"{field}: at most {format_ms(int(float(parts.settings.max_timeout) * 1000))}")
    return value


@router.post("/sandboxes", status_code=202)
async def create_sandbox(body: CreateSandbox, request: Request, parts: P, who: Who) -> dict[str, Any]:
    """Ask for a sandbox; wait on the operation to see it run."""
    who.need("sandboxes:write")
    body.refuse_later_features()
    timeout, idle = _bounded(parts, body.timeout, "timeout"), _bounded(parts, body.idle_timeout, "idle_timeout")
    wish = body.resources
    shape = shapes.choose(wish.vcpus if wish else None, wish.memory_mib if wish else None)
    disk = (wish.disk_mib if wish else None) or shapes.DEFAULT_DISK_MIB
    async with parts.db.transaction() as tx:

        async def make() -> dict[str, Any]:
            await _check_possible(tx, who, body)
            row = await tx.fetchrow(
                "add_sandbox", id=new("sbx"), org_id=who.org_id, name=body.name, template=body.template,
                vcpus=shape.vcpus, memory_mib=shape.memory_mib, disk_mib=disk, metadata=body.metadata, env=body.env,
                require_isolation=body.isolation, timeout_ms=timeout, idle_timeout_ms=idle,
                on_timeout=body.on_timeout, created_by=who.key_id,
            )  # fmt: skip
            assert row is not None
            operation = await _start(tx, who, row["id"], "create", "sandbox_requested")
            return {"sandbox": show_sandbox(row), "operation": show_operation(operation)}

        answer, _ = await once(request, tx, who, make)
    return answer


async def _check_possible(tx: Transaction, who: Principal, body: CreateSandbox) -> None:
    isolations = {row["isolation"] for row in await tx.fetch("template_isolations", template=body.template)}
    if not isolations:
        raise TemplateNotFound(f"no ready node has the template {body.template}")
    if body.isolation == "kvm" and "kvm" not in isolations:
        raise IsolationUnavailable
    live = await tx.fetchval("count_live_sandboxes", org_id=who.org_id)
    if live >= MAX_LIVE_SANDBOXES:
        raise QuotaExceeded(f"the organisation has {live} sandboxes of {MAX_LIVE_SANDBOXES}")


async def _start(tx: Transaction, who: Principal, sandbox_id: str, kind: str, event: str) -> Record:
    await tx.execute(
        "add_event", sandbox_id=sandbox_id, org_id=who.org_id, type=event, data={"request_id": who.request_id}
    )
    row = await tx.fetchrow(
        "add_operation", id=new("op"), org_id=who.org_id, sandbox_id=sandbox_id, kind=kind, request_id=who.request_id
    )
    assert row is not None
    return row


@router.get("/sandboxes")
async def list_sandboxes(  # noqa: PLR0917 (FastAPI passes by name)
    request: Request, parts: P, who: Who, limit: Limit = 50, cursor: Cursor = None,
    state: State | None = None, template: Annotated[str | None, Query(max_length=200, pattern=r"^[^\x00]*$")] = None,
) -> dict[str, Any]:  # fmt: skip
    """The organisation's sandboxes, newest first; also by `metadata.<key>=<value>`."""
    who.need("sandboxes:read")
    page = parse_page(limit, cursor)
    wanted = {k.removeprefix("metadata."): v for k, v in request.query_params.items() if k.startswith("metadata.")}
    if any("\x00" in key + value for key, value in wanted.items()):
        raise InvalidRequest("text must not have NUL characters")
    rows = await parts.db.fetch(
        "list_sandboxes", org_id=who.org_id, state=state.value if state else None, template=template,
        metadata=wanted, **page.params(),
    )  # fmt: skip
    return page.answer(rows, show_sandbox)


@router.get("/sandboxes/{sandbox_id}")
async def get_sandbox(sandbox_id: str, parts: P, who: Who) -> dict[str, Any]:
    """One sandbox as it was last observed."""
    who.need("sandboxes:read")
    return show_sandbox(await sandbox_of(parts, who, sandbox_id))


def _check_generation(row: Record, if_match: str | None) -> None:
    if if_match is not None and if_match.strip().strip('"') not in ("*", str(row["generation"])):
        raise GenerationConflict(f"the generation is {row['generation']}, not {if_match.strip()[:40]}")


IfMatch = Annotated[str | None, Header(max_length=40)]


@router.patch("/sandboxes/{sandbox_id}")
async def patch_sandbox(
    sandbox_id: str, body: PatchSandbox, parts: P, who: Who, if_match: IfMatch = None
) -> dict[str, Any]:
    """Change timeouts or metadata."""
    who.need("sandboxes:write")
    if body.on_timeout == "suspend":
        raise NotInThisVersion("on_timeout: suspend is not in this version", hint="Use `delete`.")
    timeout, idle = _bounded(parts, body.timeout, "timeout"), _bounded(parts, body.idle_timeout, "idle_timeout")
    async with parts.db.transaction() as tx:
        row = await sandbox_of(tx, who, sandbox_id, query="lock_sandbox")
        _check_generation(row, if_match)
        if row["desired"] == "deleted" or row["state"] in ("deleting", "deleted", "failed"):
            raise StateConflict(f"the sandbox is {row['state']} and its wanted state is {row['desired']}")
        changed = await tx.fetchrow(
            "patch_sandbox", id=sandbox_id, timeout_ms=timeout, idle_timeout_ms=idle, metadata=body.metadata
        )
    assert changed is not None
    return show_sandbox(changed)


@router.delete("/sandboxes/{sandbox_id}", status_code=202)
async def delete_sandbox(sandbox_id: str, parts: P, who: Who, if_match: IfMatch = None) -> dict[str, Any]:
    """Take a sandbox down; twice gives the same operation, once it is gone 404."""
    who.need("sandboxes:write")
    async with parts.db.transaction() as tx:
        row = await sandbox_of(tx, who, sandbox_id, query="lock_sandbox")
        if row["state"] == "deleted":
            raise SandboxNotFound("the sandbox is gone")
        _check_generation(row, if_match)
        operation = None
        if row["desired"] == "deleted":
            operation = await tx.fetchrow("open_delete", sandbox_id=sandbox_id)
        else:
            await tx.execute("want_deleted", id=sandbox_id)
        if operation is None:
            operation = await _start(tx, who, sandbox_id, "delete", "sandbox_delete_requested")
    return {"operation": show_operation(operation)}


@router.get("/operations/{operation_id}")
async def get_operation(
    operation_id: str, parts: P, who: Who, wait: Annotated[str | None, Query(max_length=16)] = None
) -> dict[str, Any]:
    """An operation; with `wait` the answer comes when it ends, or after that time as it is then."""
    who.need("sandboxes:read")
    deadline = monotonic() + (min(parse_ms(wait) / 1000, MAX_WAIT_S) if wait else 0)
    while True:
        row = None
        if is_id(operation_id, "op"):
            row = await parts.db.fetchrow("get_operation", id=operation_id, org_id=who.org_id)
        if row is None:
            raise OperationNotFound
        left = deadline - monotonic()
        if row["state"] in ("succeeded", "failed") or left <= 0:
            return show_operation(row)
        await parts.waiters.wait(operation_id, min(left, LOOK_AGAIN_S))


@router.post("/sandboxes/{sandbox_id}/tokens", status_code=201)
async def create_token(sandbox_id: str, body: CreateToken, parts: P, who: Who) -> dict[str, Any]:
    """A data-plane token for this sandbox."""
    who.need("commands:write")
    row = await sandbox_of(parts, who, sandbox_id)
    ttl = parse_ms(body.ttl) / 1000
    if ttl > 3600:
        raise InvalidRequest("ttl: at most 1h")
    token, expires = parts.sandbox_token(row, body.scopes, ttl)
    return {"token": token, "expires_at": expires, "scopes": body.scopes, "url": parts.settings.public_data_plane_url}


@router.get("/sandboxes/{sandbox_id}/processes")
async def processes(sandbox_id: str, parts: P, who: Who) -> Any:
    """The process table as the machine reports it."""
    return await _live(parts, who, sandbox_id, "processes")


@router.get("/sandboxes/{sandbox_id}/console")
async def console(sandbox_id: str, parts: P, who: Who) -> Any:
    """The tail of the serial console."""
    return await _live(parts, who, sandbox_id, "console")


async def _live(parts: Platform, who: Principal, sandbox_id: str, what: str) -> Any:
    who.need("sandboxes:read")
    row = await sandbox_of(parts, who, sandbox_id)
    if row["state"] != "running":
        raise StateConflict(f"the sandbox is {row['state']}, not running")
    token, _ = parts.sandbox_token(row, [what], 60)
    return await parts.live("GET", f"/v1/sandboxes/{sandbox_id}/{what}", token)


def _show_event(row: Record) -> dict[str, Any]:
    return {"cursor": str(row["id"]), "at": row["at"], "type": row["type"], "data": row["data"]}


@router.get("/sandboxes/{sandbox_id}/timeline")
async def timeline(  # noqa: PLR0917 (FastAPI passes by name)
    sandbox_id: str, parts: P, who: Who, limit: Limit = 50,
    cursor: Annotated[str | None, Query(pattern=r"^[0-9]{1,18}$")] = None, follow: bool = False,
) -> Any:  # fmt: skip
    """What happened, oldest first; with `follow` as NDJSON until the sandbox is gone."""
    who.need("sandboxes:read")
    await sandbox_of(parts, who, sandbox_id)
    after = int(cursor or 0)
    if follow:
        return StreamingResponse(_follow(parts, who, sandbox_id, after), media_type="application/x-ndjson")
    rows = await parts.db.fetch("list_events", sandbox_id=sandbox_id, after=after, size=limit + 1)
    following = str(rows[limit - 1]["id"]) if len(rows) > limit else None
    return {"items": [_show_event(row) for row in rows[:limit]], "next_cursor": following}


async def _follow(parts: Platform, who: Principal, sandbox_id: str, after: int) -> AsyncIterator[bytes]:
    while True:
        sandbox = await sandbox_of(parts, who, sandbox_id)
        rows = await parts.db.fetch("list_events", sandbox_id=sandbox_id, after=after, size=200)
        for row in rows:
            after = row["id"]
            yield json.dumps({**_show_event(row), "at": row["at"].isoformat()}).encode() + b"\n"
        if not rows:
            if sandbox["state"] == "deleted":
                return
            await asyncio.sleep(FOLLOW_EVERY_S)
