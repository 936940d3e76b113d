"""One JSON record a sandbox, written in one step before anything it speaks of is made."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from space.wire.node import Assign


class Sandbox(BaseModel):
    """What the worker knows of a sandbox; enough to go on or to undo after a crash."""

    model_config = ConfigDict(extra="forbid")

    assign: Assign
    state: Literal["creating", "running", "deleting", "failed"] = "creating"
    uid: int | None = None
    netns: str | None = None
    machine: dict[str, Any] | None = None
    timings: dict[str, float] = {}


class Records:
    """The folder of records."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self) -> dict[str, Sandbox]:
        """Every readable record; an unreadable one is removed, and what it spoke of is reclaimed by name."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = {}
        for path in self._folder.glob("*.json"):
            try:
                found[path.stem] = Sandbox.model_validate_json(path.read_bytes())
            except (ValidationError, ValueError):
                path.unlink()
        return found

    async def write(self, record: Sandbox) -> None:
        """Replace a record."""
        data = json.dumps(record.model_dump(mode="json")).encode()
        await asyncio.to_thread(self._write, self._folder / f"{record.assign.sandbox}.json", data)

    def remove(self, sandbox: str) -> None:
        """Forget a sandbox."""
        (self._folder / f"{sandbox}.json").unlink(missing_ok=True)

    @staticmethod
    def _write(path: Path, data: bytes) -> None:
        fresh = path.with_suffix(".new")
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
