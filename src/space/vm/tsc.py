"""The rate of this host's time stamp counter.

In software emulation a guest has no timer to calibrate its TSC against and hangs at boot unless it is told the rate
(`tsc_early_khz`). The guest's TSC runs at the host's rate.
"""

import ctypes
import functools
import mmap
import time
from collections.abc import Callable

# rdtsc; shl rdx,32; or rax,rdx; ret
RDTSC = bytes.fromhex("0f3148c1e2204809d0c3")
WINDOW_S = 0.2  # with both ends bracketed the error is a few parts in a million, which is the guest's clock drift
BRACKETS = 32  # the tightest of so many readings: one that was not interrupted


def _reader(page: mmap.mmap) -> Callable[[], int]:
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    function: Callable[[], int] = ctypes.CFUNCTYPE(ctypes.c_uint64)(address)
    return function


def _sample(read: Callable[[], int]) -> tuple[int, int]:
    """(nanoseconds, ticks) read together."""
    best: tuple[int, int, int] | None = None
    for _ in range(BRACKETS):
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        ticks = read()
        after = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        if best is None or after - before < best[0]:
            best = (after - before, (before + after) // 2, ticks)
    assert best is not None  # BRACKETS is positive
    return best[1], best[2]


@functools.cache
def khz() -> int:
    """Measure once a process; blocks for `WINDOW_S`, so call it in a thread."""
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(RDTSC)
    read = _reader(page)
    ns_0, ticks_0 = _sample(read)
    time.sleep(WINDOW_S)
    ns_1, ticks_1 = _sample(read)
    return round((ticks_1 - ticks_0) * 1_000_000 / (ns_1 - ns_0))
