"""Whether a process of this machine is still there."""

from __future__ import annotations

import os


def lives(process: int) -> bool:
    """True for one that cannot be asked: on Windows signal 0 is Ctrl-C, and another user's may not be signalled."""
    if os.name == "nt":
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True
