# -*- test-case-name: tests.base.test_tuning -*-
"""
Tunes the memory allocator and the garbage collector of a member's process.

A member under load allocates and frees buffers of some hundred KiB thousands of times a second. By
default glibc gets each large buffer from the kernel and returns it, and the kernel zeroes every page
again: this took half of the processor time of a leader of 1-KiB entries. If glibc keeps freed memory, a
member needs some MiB more and a third less time.

Objects that exist when a member starts live as long as it does, so the collector skips them.
"""

from __future__ import annotations

import ctypes
import gc

# mallopt(3): names and numbers of malloc.h.
_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3

#: Bytes of freed memory at the end of the heap that are kept, not returned to the kernel.
KEPT_BYTES = 64 * 1024 * 1024
#: Each time the heap grows, it takes this many bytes more than requested from the kernel.
STEP_BYTES = 4 * 1024 * 1024
#: Largest block that is allocated from the heap; glibc allows at most 32 MiB.
HEAP_BLOCK_BYTES = 32 * 1024 * 1024

#: New objects between two collections of the youngest generation. Reference counts free most objects.
YOUNG_OBJECTS = 10_000


def keep_freed_memory() -> bool:
    """
    Let the allocator keep freed memory, up to L{KEPT_BYTES}.

    @return: whether it could be configured; only glibc can.
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
    """Exclude all existing objects from later collections, and collect young objects less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 10, 10)
