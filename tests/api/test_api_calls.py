"""Each call and each refusal, over the real application and database."""

import asyncio
import time
from typing import Any

import pytest

from space.api.problems import STATUS
from space.domain.errors import catalogue
from space.wire import tokens


def test_every_code_has_a_status_and_a_message() -> None:
    assert set(STATUS) == set(catalogue())
    for cls in catalogue().values():
        assert cls.default_message()
        assert cls.hint


async def test_create_wait_read_delete(api: Any) -> None:
    answer = await api.call("POST", "/v1/sandboxes", json={"metadata": {"a": "b"}}, headers={"X-Request-Id": "r-1"})
    assert answer.status_code == 202
    assert answer.headers["x-request-id"] == "r-1"
    sandbox, operation = answer.json()["sandbox"], answer.json()["operation"]
    assert (sandbox["state"], sandbox["timeout"], operation["request_id"]) == ("creating", "5m", "r-1")
    waiting = asyncio.create_task(api.call("GET", f"/v1/operations/{operation['id']}?wait=20s"))
    await asyncio.sleep(0.2)
    began = time.monotonic()
    await api.sql("update operations set state = 'succeeded', finished_at = now() where id = $1", operation["id"])
    assert (await waiting).json()["state"] == "succeeded"
    assert time.monotonic() - began < 1.0  # the wake-up, not the next look
    found = (await api.call("GET", "/v1/sandboxes?metadata.a=b")).json()["items"]
    assert [item["id"] for item in found] == [sandbox["id"]]
    first = await api.call("DELETE", f"/v1/sandboxes/{sandbox['id']}")
    again = await api.call("DELETE", f"/v1/sandboxes/{sandbox['id']}")
    assert first.status_code == 202
    assert first.json() == again.json()
    await api.sql("update sandboxes set state = 'deleting'")
    await api.sql("update sandboxes set state = 'deleted'")
    assert (await api.call("DELETE", f"/v1/sandboxes/{sandbox['id']}")).json()["code"] == "sandbox_not_found"
    page = (await api.call("GET", f"/v1/sandboxes/{sandbox['id']}/timeline?limit=1")).json()
    assert page["items"][0]["type"] == "sandbox_requested"
    assert page["next_cursor"]
    lines = (await api.call("GET", f"/v1/sandboxes/{sandbox['id']}/timeline?follow=true")).text.splitlines()
    assert len(lines) == 2


BAD: list[tuple[dict[str, Any], int, str]] = [
    ({"tempalte": "x"}, 422, "unknown_field"), ({"template": "none:latest"}, 404, "template_not_found"),
    ({"timeout": "0s"}, 422, "invalid_request"), ({"timeout": "-5m"}, 422, "invalid_request"),
    ({"timeout": 5}, 422, "invalid_request"), ({"resources": {"vcpus": 512}}, 422, "no_such_shape"),
    ({"network": {"mode": "open"}}, 422, "not_in_this_version"), ({"credentials": []}, 422, "not_in_this_version"),
    ({"from_snapshot": "snap1"}, 422, "not_in_this_version"), ({"on_timeout": "suspend"}, 422, "not_in_this_version"),
    ({"metadata": {"a": "\x00"}}, 422, "invalid_request"), ({"isolation": "kvm"}, 409, "isolation_unavailable"),
    ({"env": {f"k{n}": "" for n in range(65)}}, 422, "invalid_request"),
    ({"env": {"a": "b" * 1_100_000}}, 413, "request_too_large"), ({"timeout": "99999h"}, 422, "invalid_request"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "status", "code"), BAD, ids=[f"{n}-{row[2]}" for n, row in enumerate(BAD)])
async def test_bad_creates(api: Any, body: dict[str, Any], status: int, code: str) -> None:
    answer = await api.call("POST", "/v1/sandboxes", json=body)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["request_id"] == answer.headers["x-request-id"]
    assert await api.sql("select from sandboxes") == []


async def test_who_may_call(api: Any) -> None:
    token, _ = api.platform.sandbox_token({"id": "sbx1", "org_id": "one"}, ["commands"], 60)
    for key, status, code in (
        ("space_" + "0" * 40, 401, "unauthenticated"), ("x", 401, "unauthenticated"), (token, 401, "wrong_token_kind"),
    ):  # fmt: skip
        answer = await api.call("GET", "/v1/sandboxes", key=key)
        assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert (await api.client.get("/v1/sandboxes")).status_code == 401
    for path in ("/v1/nodes", "/v1/keys"):
        assert (await api.call("GET", path, key="member")).json()["code"] == "forbidden"
    assert (await api.call("GET", "/v1/nothing")).json()["code"] == "not_found"
    assert (await api.call("PUT", "/v1/sandboxes")).json()["code"] == "method_not_allowed"
    answer = await api.call("POST", "/v1/sandboxes", content=b"{", headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")


async def test_organisations_are_apart(api: Any) -> None:
    sandbox = await api.running()
    command = (await api.call("POST", f"/v1/sandboxes/{sandbox}/commands", json={"command": ["id"]})).json()["command"]
    base = f"/v1/sandboxes/{sandbox}"
    for method, path in (
        ("GET", base), ("DELETE", base), ("GET", base + "/commands"), ("GET", base + "/timeline"),
        ("GET", base + "/processes"), ("GET", f"{base}/commands/{command['id']}"),
        ("POST", f"{base}/commands/{command['id']}/attachments"),
    ):  # fmt: skip
        assert (await api.call(method, path, key="other")).json()["code"] == "sandbox_not_found"
    assert (await api.call("GET", "/v1/sandboxes", key="other")).json()["items"] == []
    operation = (await api.sql("select id from operations"))[0]["id"]
    assert (await api.call("GET", f"/v1/operations/{operation}", key="other")).json()["code"] == "operation_not_found"


async def test_idempotency(api: Any) -> None:
    headers = {"Idempotency-Key": "k"}
    answers = await asyncio.gather(*(api.call("POST", "/v1/sandboxes", json={}, headers=headers) for _ in range(5)))
    assert len({answer.json()["sandbox"]["id"] for answer in answers}) == 1
    other = await api.call("POST", "/v1/sandboxes", json={"name": "b"}, headers=headers)
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_conflict")
    key = await api.call("POST", "/v1/keys", json={"name": "n"}, headers={"Idempotency-Key": "k2"})
    again = await api.call("POST", "/v1/keys", json={"name": "n"}, headers={"Idempotency-Key": "k2"})
    assert again.json()["id"] == key.json()["id"]
    assert again.json()["key"] is None
    assert key.json()["key"] not in str(await api.sql("select * from idempotency_keys"))


async def test_paging(api: Any) -> None:
    made = [(await api.call("POST", "/v1/sandboxes", json={})).json()["sandbox"]["id"] for _ in range(5)]
    seen, cursor = [], ""
    while True:
        page = (await api.call("GET", f"/v1/sandboxes?limit=2{cursor}")).json()
        seen += [item["id"] for item in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert seen == made[::-1]
    for bad in ("x", "bnVsbA", "W10", "%00"):
        assert (await api.call("GET", f"/v1/sandboxes?cursor={bad}")).status_code == 422


async def test_patch_and_if_match(api: Any) -> None:
    sandbox = await api.running()
    answer = await api.call("PATCH", f"/v1/sandboxes/{sandbox}", json={"timeout": "1h"}, headers={"If-Match": '"1"'})
    assert (answer.json()["timeout"], answer.json()["generation"]) == ("1h", 2)
    answer = await api.call("PATCH", f"/v1/sandboxes/{sandbox}", json={"timeout": "2h"}, headers={"If-Match": "1"})
    assert (answer.status_code, answer.json()["code"]) == (409, "generation_conflict")


async def test_commands(api: Any) -> None:
    created = (await api.call("POST", "/v1/sandboxes", json={})).json()["sandbox"]["id"]
    answer = await api.call("POST", f"/v1/sandboxes/{created}/commands", json={"command": ["id"]})
    assert (answer.status_code, answer.json()["code"]) == (409, "state_conflict")
    sandbox = await api.running()
    body = {"command": ["sh", "|", "x"], "env": {"A": "b"}, "timeout": "3s", "labels": {"l": "m"}}
    answer = await api.call("POST", f"/v1/sandboxes/{sandbox}/commands", json=body)
    assert answer.status_code == 201, answer.text
    command, attachment = answer.json()["command"], answer.json()["attachment"]
    claims = tokens.verify(attachment["token"], api.platform.key.public_key())
    assert isinstance(claims, tokens.AttachmentClaims)
    assert (claims.sub, claims.sbx, claims.node) == (command["id"], sandbox, "node1")
    spec = await api.call("GET", f"/internal/v1/commands/{command['id']}/spec", key=attachment["token"])
    assert spec.json()["spec"]["command"] == body["command"]
    assert spec.json()["spec"]["timeout_ms"] == 3000
    refused = await api.call("GET", f"/internal/v1/commands/{command['id']}/spec")
    assert refused.json()["code"] == "wrong_token_kind"
    listed = (await api.call("GET", f"/v1/sandboxes/{sandbox}/commands")).json()["items"]
    assert [item["id"] for item in listed] == [command["id"]]
    answer = await api.call(
        "POST", f"/v1/sandboxes/{sandbox}/commands/{command['id']}/signal", json={"signal": "SIGTERM"}
    )
    assert (answer.status_code, answer.json()["code"]) == (503, "platform_unavailable")  # no data plane runs here
    assert (await api.call("GET", f"/v1/sandboxes/{sandbox}/commands/cmdx")).json()["code"] == "command_not_found"


async def test_nodes_and_keys(api: Any) -> None:
    answer = await api.call("POST", "/v1/nodes", json={"name": "worker-1"})
    assert answer.status_code == 201
    assert answer.json()["enrolment_token"].startswith("enrol_")
    assert (await api.call("POST", "/v1/nodes", json={"name": "worker-1"})).json()["code"] == "state_conflict"
    made = (await api.call("POST", "/v1/keys", json={"name": "k", "scopes": ["sandboxes:read"]})).json()
    assert (await api.call("GET", "/v1/sandboxes", key=made["key"])).status_code == 200
    assert (await api.call("POST", "/v1/sandboxes", key=made["key"], json={})).json()["code"] == "forbidden"
    assert (await api.call("DELETE", f"/v1/keys/{made['id']}")).status_code == 204
    assert (await api.call("GET", "/v1/sandboxes", key=made["key"])).status_code == 401
    assert (await api.call("DELETE", f"/v1/keys/{made['id']}")).json()["code"] == "key_not_found"
    assert (await api.call("GET", "/v1/templates/seed:latest")).json()["digest"] == "sha256:00"
