"""A child process that ends with its parent, so that no trainer outlives its run."""

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
    """Return the environment variable that names this process as a child's parent."""
    return {variable: str(os.getpid())}


def end_with_parent(variable: str = PARENT) -> None:
    """End this process as soon as the parent that the variable names is gone, if it is set.

    Call it before anything is loaded.
    """
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
