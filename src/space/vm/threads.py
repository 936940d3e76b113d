"""Runs blocking kernel work in a thread of its own, to its end, even when the caller is cancelled.

A thread that has entered another network namespace must never be used again by somebody else, so each call gets a fresh
one. A cancelled caller still waits for the work: half a namespace or half a snapshot is worse than a late cancel.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


async def run_whole(work: Callable[[], T], undo: Callable[[T], object] | None = None) -> T:
    """Run `work` in a new thread; on cancel wait for its end, `undo` its result and raise the cancel."""
    executor = ThreadPoolExecutor(1, thread_name_prefix="space-vm")
    future = asyncio.get_running_loop().run_in_executor(executor, work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait({future})
        # reading the exception also keeps the loop from reporting it a second time
        if not future.cancelled() and future.exception() is None and undo is not None:
            undo(future.result())
        raise
    finally:
        executor.shutdown(wait=False)
