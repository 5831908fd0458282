# -*- test-case-name: tests.base.test_tuning -*-
"""
What one process does for a member's sake: its memory allocator and its garbage collector.

A member under load takes and gives back buffers of some hundred KiB thousands of times a second. glibc
takes each large one from the kernel and gives it back, and the kernel zeroes every page of it again:
half of the processor time of a leader of 1-KiB entries went there. Told to keep what it was given back,
a member needs some MiB more and a third less time.

What exists when a member starts, lives as long as it does: the collector need not look at it again.
"""

from __future__ import annotations

import ctypes
import gc

# mallopt(3): names and numbers of malloc.h.
_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3

#: Freed memory at the end of the heap that is kept rather than given back, in bytes.
KEPT_BYTES = 64 * 1024 * 1024
#: So much more than asked for is taken from the kernel each time.
STEP_BYTES = 4 * 1024 * 1024
#: The longest block that is taken from the heap; glibc allows no more than 32 MiB.
HEAP_BLOCK_BYTES = 32 * 1024 * 1024

#: New objects between two looks at the youngest of them. Most of ours end by their reference count.
YOUNG_OBJECTS = 10_000


def keep_freed_memory() -> bool:
    """
    Let the allocator keep what it is given back, up to L{KEPT_BYTES}.

    @return: whether it could be told; other C libraries than glibc are left as they are.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    settings = (
        (_M_MMAP_THRESHOLD, HEAP_BLOCK_BYTES),
        (_M_TRIM_THRESHOLD, KEPT_BYTES),
        (_M_TOP_PAD, STEP_BYTES),
    )
    return all(mallopt(number, value) == 1 for number, value in settings)


def spare_the_collector() -> None:
    """Leave what exists now out of every later collection, and look at young objects less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 10, 10)
