"""How the catalogue's errors look on the data plane: their status and their problem document."""

from space.domain.errors import SpaceError

# A code that is not here is not the caller's fault: 500, or 503 where trying again may help.
_STATUS = {
    "unauthenticated": 401,
    "wrong_token_kind": 401,
    "forbidden": 403,
    "not_found": 404,
    "sandbox_not_found": 404,
    "command_not_found": 404,
    "method_not_allowed": 405,
    "state_conflict": 409,
    "request_too_large": 413,
    "invalid_request": 422,
    "invalid_cursor": 422,
    "unknown_field": 422,
    "command_start_failed": 422,
    "too_many_requests": 429,
}


class ApiRefusedError(Exception):
    """The API answered an internal call with a problem; it is passed on as it is."""

    def __init__(self, status: int, document: dict[str, object]) -> None:
        """Keep the API's status and its problem document."""
        super().__init__(str(document.get("code")))
        self.status = status
        self.document = document


def status_of(error: SpaceError) -> int:
    """The HTTP status of an error."""
    return _STATUS.get(error.code, 503 if error.retry else 500)


def document_of(error: SpaceError, request_id: str) -> dict[str, object]:
    """The application/problem+json document of an error."""
    return {
        "type": f"urn:space:error:{error.code}",
        "title": type(error).default_message(),
        "status": status_of(error),
        "code": error.code,
        "detail": error.detail,
        "hint": error.advice,
        "request_id": request_id,
    }
