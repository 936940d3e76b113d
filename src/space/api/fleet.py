"""Templates (read), nodes and keys."""

from __future__ import annotations

import hashlib
import secrets
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from space.api.context import P, Who, once, parse_page
from space.api.keys import new_key
from space.api.models import CreateKey, CreateNode
from space.domain.errors import KeyNotFound, StateConflict, TemplateNotFound
from space.domain.ids import is_id, new
from space.store import Record, UniqueConflict

router = APIRouter(prefix="/v1", tags=["fleet"])

# Long enough to carry the token to a machine by hand, short enough that a lost one is soon worthless.
ENROLMENT_TTL_S = 3600

Limit = Annotated[int, Query(ge=1, le=200)]
Cursor = Annotated[str | None, Query(max_length=300)]


def _show_key(row: Record) -> dict[str, Any]:
    return dict(row)


def _show_node(row: Record) -> dict[str, Any]:
    keep = ("id", "name", "state", "capacity", "machine", "data_plane_url", "last_seen_at", "created_at")
    return {name: row[name] for name in keep}


@router.get("/templates")
async def list_templates(parts: P, who: Who) -> dict[str, Any]:
    """The templates that nodes have."""
    who.need("sandboxes:read")
    return {"items": [dict(row) for row in await parts.db.fetch("list_templates")], "next_cursor": None}


@router.get("/templates/{name}")
async def get_template(name: str, parts: P, who: Who) -> dict[str, Any]:
    """One template by `name:tag`."""
    who.need("sandboxes:read")
    for row in await parts.db.fetch("list_templates"):
        if row["name"] == name:
            return dict(row)
    raise TemplateNotFound


@router.get("/nodes")
async def list_nodes(parts: P, who: Who, limit: Limit = 50, cursor: Cursor = None) -> dict[str, Any]:
    """The nodes, newest first."""
    who.need_operator()
    page = parse_page(limit, cursor)
    return page.answer(await parts.db.fetch("list_nodes", **page.params()), _show_node)


@router.post("/nodes", status_code=201)
async def create_node(body: CreateNode, request: Request, parts: P, who: Who) -> dict[str, Any]:
    """Let a node enrol; the token is shown once and works once."""
    who.need_operator()
    token = "enrol_" + secrets.token_hex(20)
    try:
        async with parts.db.transaction() as tx:

            async def make() -> dict[str, Any]:
                sha256 = hashlib.sha256(token.encode()).digest()
                row = await tx.fetchrow(
                    "add_node", id=new("node"), name=body.name, sha256=sha256, ttl_s=ENROLMENT_TTL_S
                )
                assert row is not None
                return {"node": _show_node(row)}

            answer, again = await once(request, tx, who, make)
    except UniqueConflict as error:
        raise StateConflict(f"there is a node named {body.name}") from error
    return {**answer, "enrolment_token": None if again else token}


@router.get("/keys")
async def list_keys(parts: P, who: Who, limit: Limit = 50, cursor: Cursor = None) -> dict[str, Any]:
    """The organisation's keys; never the keys themselves."""
    who.need_operator()
    page = parse_page(limit, cursor)
    return page.answer(await parts.db.fetch("list_keys", org_id=who.org_id, **page.params()), _show_key)


@router.post("/keys", status_code=201)
async def create_key(body: CreateKey, request: Request, parts: P, who: Who) -> dict[str, Any]:
    """A new key of this organisation, shown once."""
    who.need_operator()
    plain, sha256 = new_key()
    async with parts.db.transaction() as tx:

        async def make() -> dict[str, Any]:
            row = await tx.fetchrow(
                "add_key", id=new("key"), org_id=who.org_id, name=body.name, role=body.role, scopes=body.scopes,
                sha256=sha256, created_by=who.key_id,
            )  # fmt: skip
            assert row is not None
            return _show_key(row)

        answer, again = await once(request, tx, who, make)
    return {**answer, "key": None if again else plain}


@router.delete("/keys/{key_id}", status_code=204)
async def delete_key(key_id: str, parts: P, who: Who) -> Response:
    """End a key at once."""
    who.need_operator()
    gone = await parts.db.fetchrow("revoke_key", id=key_id, org_id=who.org_id) if is_id(key_id, "key") else None
    if gone is None:
        raise KeyNotFound
    return Response(status_code=204)
