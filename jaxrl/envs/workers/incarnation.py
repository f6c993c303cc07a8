"""How often the worker in which this code runs has been started again: 0 in its first process."""

from __future__ import annotations

from contextvars import ContextVar

INCARNATION: ContextVar[int] = ContextVar("incarnation", default=0)
"""Set before an environment is built, and not changed later."""
