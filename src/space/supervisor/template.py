"""Building the seed template where there is none, with its progress shown."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from space.base.logs import get_logger
from space.base.settings import Settings
from space.templates.seed import build_seed
from space.vm.disk import Store

SEED = ("seed", "latest")


def _store(settings: Settings) -> Store:
    return Store(settings.state_dir, size_mib=settings.pool_size_mib, floor_mib=settings.pool_floor_mib)


def has_seed(pool: Path) -> bool:
    """Whether the tag leads to a whole template."""
    return (pool / "tags" / SEED[0] / SEED[1] / "manifest.json").is_file()


async def ensure_seed(settings: Settings, *, rebuild: bool = False) -> Path:
    """Open the pool and build the seed when it is missing. The pool stays mounted: the worker takes it over."""
    store = _store(settings)
    await store.open()
    if rebuild or not has_seed(store.pool):
        with _bar() as told:
            await build_seed(store, told, state_dir=settings.state_dir)
    return store.pool / "tags" / SEED[0] / SEED[1] / "manifest.json"


async def close_pool(settings: Settings) -> None:
    """Unmount the pool after the worker has ended."""
    await _store(settings).close()


def build_here() -> dict[str, Any]:
    """Rebuild the seed on this host and give its manifest."""
    manifest = asyncio.run(ensure_seed(Settings.load(), rebuild=True))
    found: dict[str, Any] = json.loads(manifest.read_text())
    return found


class _bar:
    """A bar on a terminal, a line a phase in a log."""

    def __enter__(self) -> Callable[[str, float], None]:
        self._console = Console(stderr=True)
        self._phase = ""
        if not self._console.is_terminal:
            return self._line
        self._progress = Progress(
            TextColumn("template seed:latest"), BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn(),
            console=self._console, transient=True,
        )  # fmt: skip
        self._task = self._progress.add_task("", total=1.0)
        self._progress.start()
        return lambda phase, done: self._progress.update(self._task, completed=done, description=phase)

    def __exit__(self, *_error: object) -> None:
        if self._console.is_terminal:
            self._progress.stop()

    def _line(self, phase: str, done: float) -> None:
        if phase != self._phase:
            self._phase = phase
            get_logger().info("template", action="template_build", phase=phase, done=f"{done:.0%}")
