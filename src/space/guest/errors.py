"""What can go wrong between us and a guest, by whose fault it is."""


class GuestError(Exception):
    """The agent answered and refused; ``code`` is its reason."""

    def __init__(self, code: str, message: str, *, status: int = 0, path: str | None = None) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status
        self.path = path


class GuestUnreachable(Exception):
    """No connection, no answer in time, or the connection ended in the middle."""


class GuestProtocolError(Exception):
    """The guest said something that is not the protocol; it may be an attack, never trust the rest."""
