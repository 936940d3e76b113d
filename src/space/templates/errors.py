"""What goes wrong while a template is built."""


class TemplateError(Exception):
    """A template could not be built; `phase` says where, `hint` what a person can do."""

    def __init__(self, phase: str, message: str, hint: str = "") -> None:
        self.phase = phase
        self.message = message
        self.hint = hint
        super().__init__(f"{phase}: {message}" + (f" ({hint})" if hint else ""))
