"""The error catalogue: every code that a caller can be told, whose fault it is and whether to try again.

A class's docstring is its default message. HTTP status codes are mapped in `space.api.problems`, nowhere else.
"""

from __future__ import annotations

from typing import ClassVar, Literal

Fault = Literal["caller", "world", "us"]


class SpaceError(Exception):
    """Something went wrong inside SPACE."""

    code: ClassVar[str] = "internal_error"
    fault: ClassVar[Fault] = "us"
    retry: ClassVar[bool] = False
    hint: ClassVar[str | None] = "The request id finds the log line that says why."

    def __init__(self, detail: str | None = None, *, hint: str | None = None, retry_after_s: int | None = None) -> None:
        self.detail = detail or self.default_message()
        self.advice = hint if hint is not None else type(self).hint
        self.retry_after_s = retry_after_s
        super().__init__(self.detail)

    @classmethod
    def default_message(cls) -> str:
        """The message used when the raiser has nothing more exact to say."""
        return (cls.__doc__ or "").strip()

    def as_json(self) -> dict[str, str | None]:
        """As kept in an operation's `error`."""
        return {"code": self.code, "detail": self.detail, "hint": self.advice}


class InternalError(SpaceError):
    """Something went wrong inside SPACE; it is not the request's fault."""


class Unauthenticated(SpaceError):
    """No valid key was sent."""

    code, fault = "unauthenticated", "caller"
    hint = "Send `Authorization: Bearer space_…`; `space key create` makes a key."


class WrongTokenKind(SpaceError):
    """This kind of token is not taken here."""

    code, fault = "wrong_token_kind", "caller"
    hint = "API keys are for the API, attachment and sandbox tokens for the data plane."


class Forbidden(SpaceError):
    """The key's role or scopes do not allow this call."""

    code, fault = "forbidden", "caller"
    hint = "Use a key with the role or scope that the call needs."


class NotFound(SpaceError):
    """There is nothing at this address."""

    code, fault = "not_found", "caller"
    hint = "The calls are listed in /openapi.json."


class MethodNotAllowed(SpaceError):
    """The address exists but does not take this method."""

    code, fault = "method_not_allowed", "caller"
    hint = "The calls are listed in /openapi.json."


class SandboxNotFound(NotFound):
    """There is no such sandbox."""

    code, hint = "sandbox_not_found", "`space sandbox ls` shows yours."


class CommandNotFound(NotFound):
    """There is no such command in this sandbox."""

    code, hint = "command_not_found", "`space command ls` shows a sandbox's commands."


class OperationNotFound(NotFound):
    """There is no such operation."""

    code, hint = "operation_not_found", "Operations are named in the answer to the call that started them."


class TemplateNotFound(NotFound):
    """No node has this template."""

    code, hint = "template_not_found", "`space template ls` shows what is there; names are `name:tag`."


class KeyNotFound(NotFound):
    """There is no such key."""

    code, hint = "key_not_found", "`space key ls` shows them."


class NodeNotFound(NotFound):
    """There is no such node."""

    code, hint = "node_not_found", "`space node ls` shows them."


class InvalidRequest(SpaceError):
    """The request's content is not valid."""

    code, fault = "invalid_request", "caller"
    hint = "The detail names the field; the schema is in /openapi.json."


class UnknownField(InvalidRequest):
    """The request has a field that this call does not know."""

    code = "unknown_field"
    hint = "Check the spelling; unknown fields are refused so that a typo is never ignored."


class InvalidCursor(InvalidRequest):
    """The cursor is not one that this list gave out."""

    code, hint = "invalid_cursor", "Take `next_cursor` as it was answered, with the same filters."


class NoSuchShape(InvalidRequest):
    """No shape has these resources."""

    code, hint = "no_such_shape", "Ask for no more than the largest shape; requests are rounded up to one."


class NotInThisVersion(InvalidRequest):
    """The request asks for something that this version does not do yet."""

    code, hint = "not_in_this_version", "Leave the field out."


class StateConflict(SpaceError):
    """The state of the thing does not allow this."""

    code, fault = "state_conflict", "caller"
    hint = "Read it again; its state has changed or never allowed this."


class IdempotencyConflict(SpaceError):
    """The Idempotency-Key was used before with another request."""

    code, fault = "idempotency_conflict", "caller"
    hint = "Use a new key for a new request."


class GenerationConflict(SpaceError):
    """The thing has changed since the generation in If-Match."""

    code, fault = "generation_conflict", "caller"
    hint = "Read it again and send its present `generation`."


class IsolationUnavailable(SpaceError):
    """No node can give the isolation asked for."""

    code, fault = "isolation_unavailable", "world"
    hint = "`space doctor kvm` says what a host needs; without `isolation: kvm` emulation is used, which promises none."


class QuotaExceeded(SpaceError):
    """The organisation has as many sandboxes as it may have."""

    code, fault, retry = "quota_exceeded", "caller", True
    hint = "Delete sandboxes that are no longer needed, or ask the operator for more."


class NoCapacity(SpaceError):
    """No node has room for this now."""

    code, fault, retry = "no_capacity", "world", True
    hint = "Try again later, ask for a smaller shape, or add a node."


class StartFailed(SpaceError):
    """The machine could not be started."""

    code, fault, retry = "start_failed", "us", True
    hint = "The detail names the phase; `space doctor` checks the host."


class CommandStartFailed(SpaceError):
    """The command could not be started in the sandbox."""

    code, fault = "command_start_failed", "caller"
    hint = "The detail names the executable or folder; no process was left behind."


class SandboxDeadline(SpaceError):
    """The sandbox reached its deadline."""

    code, fault = "sandbox_deadline", "caller"
    hint = "Ask for a longer `timeout`, or extend it by PATCH while the sandbox runs."


class GuestUnreachable(SpaceError):
    """The machine does not answer."""

    code, fault, retry = "guest_unreachable", "world", True
    hint = "The console's tail often says why: `space logs <sandbox>`."


class RequestTooLarge(SpaceError):
    """The request's body is larger than this call takes."""

    code, fault = "request_too_large", "caller"
    hint = "Put large content into files, not into the request."


class TooManyRequests(SpaceError):
    """Too many requests of this kind are under way."""

    code, fault, retry = "too_many_requests", "caller", True
    hint = "Wait as long as Retry-After says."


class PlatformUnavailable(SpaceError):
    """A part of the platform does not answer."""

    code, fault, retry = "platform_unavailable", "us", True
    hint = "Try again; `space status` shows which part is down."


def catalogue() -> dict[str, type[SpaceError]]:
    """Every code with its class; the base class itself stands under `internal_error`."""
    found: dict[str, type[SpaceError]] = {}
    todo: list[type[SpaceError]] = [SpaceError]
    while todo:
        cls = todo.pop()
        found.setdefault(cls.code, cls)
        todo.extend(cls.__subclasses__())
    return found
