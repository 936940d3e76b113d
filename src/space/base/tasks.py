"""Owned tasks: each has a name and a keeper, and one that dies unexpectedly ends its process instead of hiding it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from space.base.logs import get_logger

T = TypeVar("T")
Fatal = Callable[[str, BaseException], None]

# The loop itself keeps only weak references: a task nobody holds can vanish in the middle of its work.
_kept: set[asyncio.Task[Any]] = set()
_fatal: list[Fatal] = []


class TaskGroupLike(Protocol):
    """Something that owns tasks and answers for their failures, such as ``asyncio.TaskGroup``."""

    def create_task(self, coro: Coroutine[Any, Any, T], *, name: str | None = None) -> asyncio.Task[T]:
        """Start ``coro`` under this owner."""
        ...


def set_fatal(callback: Fatal | None) -> None:
    """Say what this process does when a side task dies; ``None`` takes it back."""
    _fatal.clear()
    if callback is not None:
        _fatal.append(callback)


def spawn(name: str, coro: Coroutine[Any, Any, T], *, owner: TaskGroupLike | None = None) -> asyncio.Task[T]:
    """Start ``coro`` as a named task. With an owner its failure is the owner's; without, it is the process's."""
    if owner is not None:
        return owner.create_task(coro, name=name)
    task: asyncio.Task[T] = asyncio.get_running_loop().create_task(coro, name=name)
    _kept.add(task)
    task.add_done_callback(_ended)
    return task


def _ended(task: asyncio.Task[Any]) -> None:
    _kept.discard(task)
    if task.cancelled():
        return
    error = task.exception()
    if error is None:
        return
    get_logger().error("task_died", action="task_died", task=task.get_name(), exc_info=error)
    for callback in _fatal:
        callback(task.get_name(), error)


async def cancel(*tasks: asyncio.Task[Any]) -> None:
    """Cancel the tasks and wait until each has ended; their errors were already told by ``spawn``."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
