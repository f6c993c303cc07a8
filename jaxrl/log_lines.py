"""Format of log lines, in the trainer and in its worker processes. Standard library only."""

from __future__ import annotations

import logging
import sys


def line_format(*, debug: bool, who: str = "") -> logging.Formatter:
    """Make the format `[INFO] text`, with date, level, file and line under --debug, and `who` in front of the text."""
    long = "%(asctime)s %(levelname)s [%(filename)s:%(lineno)d] "
    return logging.Formatter((long if debug else "[%(levelname)s] ") + f"{who}%(message)s", "%Y-%m-%d %H:%M:%S")


def current_level() -> int:
    """Return the level from which on this process logs jaxrl's records."""
    return logging.getLogger("jaxrl").getEffectiveLevel()


def log_as_worker(worker: int, level: int) -> None:
    """Let jaxrl's loggers in a worker process write to standard error, from the trainer's level on, with its number."""
    logger, handler = logging.getLogger("jaxrl"), logging.StreamHandler(sys.stderr)
    handler.setFormatter(line_format(debug=level <= logging.DEBUG, who=f"Worker {worker}: "))
    logger.handlers[:] = [handler]
    logger.setLevel(level)
    logger.propagate = False
