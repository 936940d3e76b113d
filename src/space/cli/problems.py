"""Errors as a person sees them: a message, a hint, an exit code; a traceback only with ``--debug``."""


class CliError(Exception):
    """Something a person can act on."""

    def __init__(self, message: str, hint: str = "", *, code: str = "cli_error", exit_code: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code
        self.exit_code = exit_code


# `space run` uses the remote exit code as its own; what is ours must not be taken for it. docker run does the same.
PLATFORM_EXIT = 125
