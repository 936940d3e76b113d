"""Errors on the wire: `application/problem+json`, and the one table of HTTP status codes."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from space.base.logs import get_logger
from space.domain import errors

STATUS: dict[str, int] = {
    "internal_error": 500, "unauthenticated": 401, "wrong_token_kind": 401, "forbidden": 403, "not_found": 404,
    "method_not_allowed": 405, "sandbox_not_found": 404, "command_not_found": 404, "operation_not_found": 404,
    "template_not_found": 404, "key_not_found": 404, "node_not_found": 404, "invalid_request": 422,
    "unknown_field": 422, "invalid_cursor": 422, "no_such_shape": 422, "not_in_this_version": 422,
    "state_conflict": 409, "idempotency_conflict": 409, "generation_conflict": 409, "isolation_unavailable": 409,
    "quota_exceeded": 429, "no_capacity": 503, "start_failed": 503, "command_start_failed": 422,
    "sandbox_deadline": 409, "guest_unreachable": 503, "request_too_large": 413, "too_many_requests": 429,
    "platform_unavailable": 503,
}  # fmt: skip
# Long enough for a restart of the database or a neighbour to be over, short enough not to annoy.
RETRY_AFTER_S = 2


def problem(error: errors.SpaceError, request_id: str) -> JSONResponse:
    """The response for an error of the catalogue."""
    status = STATUS[error.code]
    headers = {"X-Request-Id": request_id}
    if status in (413, 429, 503):
        headers["Retry-After"] = str(error.retry_after_s or RETRY_AFTER_S)
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    body = {
        "type": f"urn:space:error:{error.code}", "title": error.default_message(), "status": status,
        "code": error.code, "detail": error.detail, "hint": error.advice, "request_id": request_id,
    }  # fmt: skip
    return JSONResponse(body, status, headers, "application/problem+json")


def _request_id(request: Request) -> str:
    return str(request.scope.get("state", {}).get("request_id", ""))


def _of_validation(error: RequestValidationError) -> errors.SpaceError:
    found = error.errors()
    unknown = [item for item in found if item["type"] == "extra_forbidden"]
    chosen = (unknown or found)[0]
    place = ".".join(str(part) for part in chosen["loc"] if part != "body")[:200]
    text = f"{place}: {chosen['msg']}".encode("utf-8", "replace").decode()
    original = (chosen.get("ctx") or {}).get("error")
    if isinstance(original, errors.SpaceError):
        return original
    return errors.UnknownField(f"unknown field {place}") if unknown else errors.InvalidRequest(text)


def _of_http(error: HTTPException) -> errors.SpaceError:
    if error.status_code == 404:
        return errors.NotFound()
    if error.status_code == 405:
        return errors.MethodNotAllowed()
    return errors.InvalidRequest(str(error.detail)) if error.status_code < 500 else errors.InternalError()


def install(app: FastAPI) -> None:
    """Answer every error, also the framework's own, as a problem."""

    async def on_space(request: Request, error: Any) -> JSONResponse:
        if STATUS[error.code] >= 500:
            get_logger().error("request failed", action="request_failed", code=error.code, detail=error.detail)
        return problem(error, _request_id(request))

    async def on_validation(request: Request, error: Any) -> JSONResponse:
        return problem(_of_validation(error), _request_id(request))

    async def on_http(request: Request, error: Any) -> JSONResponse:
        answer = problem(_of_http(error), _request_id(request))
        if "Allow" in (error.headers or {}):
            answer.headers["Allow"] = error.headers["Allow"]
        return answer

    app.add_exception_handler(errors.SpaceError, on_space)
    app.add_exception_handler(RequestValidationError, on_validation)
    app.add_exception_handler(HTTPException, on_http)
