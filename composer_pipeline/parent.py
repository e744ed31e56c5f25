"""A process that ends when the one that started it is gone, however that ended.

A trainer that outlives its run would go on for hours, hold the GPU and write into a folder that
the next run takes over. One that a person starts in a shell has no such parent, and outlives it.
"""

import ctypes
import os
import signal
import sys
import threading
import time

#: The variable that names the parent.
PARENT = "COMPOSER_PARENT"
#: ``prctl``: the signal that a process gets when its parent dies.
_PR_SET_PDEATHSIG = 1


def child_of_this(variable: str = PARENT) -> dict[str, str]:
    """Return the variable by which a child knows this process as its parent."""
    return {variable: str(os.getpid())}


def end_with_parent(variable: str = PARENT) -> None:
    """End this process as soon as the parent that the variable names is gone."""
    parent = os.environ.get(variable)
    if parent is None:
        return
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_watch, args=(int(parent),), daemon=True).start()
    if os.getppid() != int(parent):  # it died before the call
        os.kill(os.getpid(), signal.SIGKILL)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os.kill(os.getpid(), signal.SIGKILL)
