"""Memory that a sync gives back at once, instead of keeping it in gaps of the heap.

Belongs here: the C library's settings for large blocks. Does not belong here: what is in memory.

glibc takes a large block from the system and gives it back when it is freed, until one was freed:
from then on blocks of that size come from the heap, where a small one behind them keeps them
(mallopt(3), "M_MMAP_THRESHOLD", dynamic). Tensors that come and go one by one then add up.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

#: Parameters of mallopt(3), from malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
#: Bytes from which a block is one of its own, during a sync and after it; the latter is where the
#: dynamic threshold of a process that has freed large blocks ends, and what it keeps then.
_DURING, _AFTER = 2**20, 32 * 2**20


@contextmanager
def returning() -> Iterator[None]:
    """Let large blocks that the block frees go back to the system; does nothing without glibc.

    Training after it has its blocks from the heap again, which is faster: no page is made twice.
    """
    library: Any = ctypes.CDLL(None)
    told = "MALLOC_MMAP_THRESHOLD_" in os.environ
    if told or not hasattr(library, "mallopt") or not hasattr(library, "malloc_trim"):
        yield
        return
    library.malloc_trim(0)
    library.mallopt(_MMAP_THRESHOLD, _DURING)
    try:
        yield
    finally:
        library.mallopt(_MMAP_THRESHOLD, _AFTER)
        library.mallopt(_TRIM_THRESHOLD, 2 * _AFTER)
