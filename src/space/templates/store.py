"""Where a finished template goes, as far as a builder needs to know it."""

from collections.abc import Collection
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol


class TemplateStore(Protocol):
    """Takes whole templates only: what was not published is gone when the staging context ends."""

    def staging(self) -> AbstractAsyncContextManager[Path]:
        """Give an empty folder that nobody else sees, removed at the end unless it was published."""
        ...

    async def publish(self, path: Path, digest_hex: str, tags: Collection[tuple[str, str]]) -> Path:
        """Make a staged folder visible under its digest and tags, at once; the same digest twice is one template."""
        ...
