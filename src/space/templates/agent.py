"""Finds the guest agent that was built into this installation."""

from importlib import resources
from pathlib import Path

from space.templates.errors import TemplateError

BUILD_COMMAND = "pip install --no-deps -e ."  # its build hook compiles the agent


def agent_binary() -> Path:
    """The static program that is process 1 in every machine; TemplateError where it was not built."""
    binary = Path(str(resources.files("space"))) / "_agent" / "space-agent"
    if not binary.is_file():
        raise TemplateError("agent", f"the guest agent is not built: no file {binary}", f"run {BUILD_COMMAND}")
    if binary.read_bytes()[:4] != b"\x7fELF":
        raise TemplateError("agent", f"{binary} is not a program", f"run {BUILD_COMMAND}")
    return binary
